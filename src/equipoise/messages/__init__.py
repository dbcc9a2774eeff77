"""What travels between clients, and what a receiver makes of it."""

from equipoise.messages.inbox import Group, Inbox
from equipoise.messages.lies import Lies, as_lies

__all__ = ["Group", "Inbox", "Lies", "as_lies"]
