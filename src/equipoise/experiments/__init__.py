"""The BALANCE paper, setting by setting; runs that show what the rules do; and the command line.

Settings are data: `Setting` names what the paper names. `run` trains one, `equipoise.experiments.tables` knows which
settings make up a table of the paper, and the command line, ``equipoise``, runs and reports them.
"""

from equipoise.experiments.settings import Setting
from equipoise.experiments.trials import run, simulator

__all__ = ["Setting", "run", "simulator"]
