"""The command ``equipoise peers``."""

from __future__ import annotations

import argparse
from pathlib import Path

from equipoise._utils.command_line import integer_from
from equipoise.peers.certificates import make_certificates


def add_peers_commands(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their options to the parser of ``equipoise peers``."""
    commands = parser.add_subparsers(dest="peers_command", required=True, metavar="COMMAND")
    summary = "make a private authority and a certificate for each peer"
    add = commands.add_parser("certificates", help=summary, description=summary).add_argument
    add("--names", nargs="+", required=True, metavar="NAME", help="names of the peers")
    add(
        "--output",
        type=Path,
        default=Path("certificates"),
        metavar="DIR",
        help="folder for the files, whose authority is used again (default: %(default)s)",
    )
    add(
        "--days",
        type=integer_from(1),
        default=365,
        help="validity of the certificates (default: %(default)s)",
    )
    add("--renew", action="store_true", help="replace certificates that exist")
    parser.set_defaults(run=_run_certificates)


def _run_certificates(options: argparse.Namespace) -> int:
    folder: Path = options.output
    names = tuple(dict.fromkeys(options.names))  # a name given twice is made once
    made = make_certificates(folder, names, days=options.days, renew=options.renew)
    for name in names:
        what = f"made, valid for {options.days} days" if name in made else "exists, kept"
        files = f"authority.pem, {name}.pem and {name}.key"
        print(f"{name}: {what}; copy {files} to its machine")
    print(f"The files are in {folder}. Each machine gets its own three, and no other key.")
    print("Keep authority.key here, to add peers: it can sign a certificate for any name.")
    print(f'On a machine: credentials=eq.peers.Credentials.load("FOLDER", "{names[0]}")')
    return 0
