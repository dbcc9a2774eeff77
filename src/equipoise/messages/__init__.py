"""The messages that clients send: inboxes, lies of malicious clients, and their validation."""

from equipoise.messages.inbox import Inbox
from equipoise.messages.lies import Lies, as_lies, lies_received, substitute_lies, unforged

__all__ = ["Inbox", "Lies", "as_lies", "lies_received", "substitute_lies", "unforged"]
