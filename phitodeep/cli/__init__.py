"""The command line: `phitodeep COMMAND`, or `python -m phitodeep COMMAND`.

Each command is one file of this folder. It calls what Python programs call too, and adds nothing
but the reading of arguments and the printing of results.
"""

from phitodeep.cli.app import App
from phitodeep.cli.check import check
from phitodeep.cli.demo import demo
from phitodeep.cli.derive import derive
from phitodeep.cli.export import export
from phitodeep.cli.generate import generate
from phitodeep.cli.info import info
from phitodeep.cli.predict import predict
from phitodeep.cli.verify import verify

__all__ = ["main"]

main = App.of(demo, info, predict, check, export, generate, derive, verify)
