"""python -m lab NAME [ARGUMENTS]; without a name, the list of names."""

from __future__ import annotations

import difflib
import runpy
import sys

from b200.command_line import USAGE
from lab.commands import COMMANDS


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        module, _ = COMMANDS[name]
        del sys.argv[1]
        runpy.run_module(module, run_name="__main__", alter_sys=True)  # as `python -m` would
        return 0
    if name in ("-h", "--help"):
        lines = (f"  {command:16} {what}" for command, (_, what) in COMMANDS.items())
        print(__doc__ or "", *lines, sep="\n")
        return 0
    print(f"python -m lab: {_no_command(name)}", file=sys.stderr)
    return USAGE


def _no_command(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no command is called {name!r}: {hint}there are {', '.join(COMMANDS)}"


if __name__ == "__main__":
    sys.exit(main())
