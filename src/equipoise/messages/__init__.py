"""What travels between clients, and what a receiver makes of it."""

from equipoise.messages.inbox import Inbox
from equipoise.messages.lies import Lies, as_lies

__all__ = ["Inbox", "Lies", "as_lies"]
