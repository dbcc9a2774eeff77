"""``python -m benchmarks.paper`` is the command line."""

import sys

from benchmarks.paper.cli import main

sys.exit(main())
