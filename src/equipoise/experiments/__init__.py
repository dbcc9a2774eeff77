"""Runs that show what the rules do, and the command line."""
