"""``python -m equipoise`` is the command line."""

import sys

from equipoise.experiments.cli import main

sys.exit(main())
