"""Addresses of peers: "host:port"."""

from __future__ import annotations

import ipaddress
import re

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%a-z]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def checked_address(argument: str, address: object, *, free: bool = False) -> str:
    """The address; raise unless it is "host:port". Port 0 is allowed if ``free``."""
    expected = '"host:port", or "[address]:port" for IPv6'
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None:
        raise ValueError(f"{argument} must be {expected}, found {address!r}")
    minimum = 0 if free else 1
    if not minimum <= int(found[2]) <= 65535:
        raise ValueError(f"{argument} must have a port from {minimum} to 65535, found {address!r}")
    return found[0]


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of a checked address, an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether a checked address never leaves this machine."""
    host, _ = host_and_port(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name of a host, which may resolve to anything tomorrow.
        return False
