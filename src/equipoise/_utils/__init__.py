"""Argument validation, formatting, random streams, atomic files, identities."""
