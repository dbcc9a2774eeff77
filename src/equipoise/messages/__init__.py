"""The messages that clients send: inboxes, lies of malicious clients, and their wire format."""

from equipoise.messages.inbox import Inbox
from equipoise.messages.lies import Lies, as_lies, lies_received, substitute_lies, unforged
from equipoise.messages.wire import HEADER_LIMIT, Header, decode_into, pack, read_header, unpack

__all__ = [
    "HEADER_LIMIT",
    "Header",
    "Inbox",
    "Lies",
    "as_lies",
    "decode_into",
    "lies_received",
    "pack",
    "read_header",
    "substitute_lies",
    "unforged",
    "unpack",
]
