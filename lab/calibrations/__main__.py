"""The clock beside a published table: `python -m lab calibrate NAME --data FOLDER`.

NAME: umma, tma, mainloop or mcast. FOLDER holds the published tables. Printed are the clock's
errors, of the half of a table that constants were chosen on, and of the other half.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import b200
from b200.command_line import USAGE, Parser
from lab.calibrations import CALIBRATIONS
from lab.calibrations.bench_kernels import MissingTable


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    parser = Parser("python -m lab calibrate", __doc__)
    parser.add_argument("name", choices=CALIBRATIONS, help="the published data set")
    options = parser.parse_args(argv[:1])
    module = importlib.import_module(f"lab.calibrations.{options.name}")
    # mainloop compiles with the CuTe DSL.
    given = [b200.install(check=False)] if options.name == "mainloop" else []
    try:
        module.main(list(argv[1:]), *given)
    except MissingTable as error:
        print(f"python -m lab calibrate {options.name}: {error}", file=sys.stderr)
        return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
