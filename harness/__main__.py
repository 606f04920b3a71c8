"""python -m harness NAME [ARGUMENTS]; without a name, the list of names."""

from __future__ import annotations

import sys

from harness.commands import COMMANDS, run


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run(name, sys.argv[2:])
        return 0
    asked = name in ("-h", "--help")
    lines = [__doc__ or "", *(f"  {command:16} {what}" for command, (_, what) in COMMANDS.items())]
    if not asked:
        lines.insert(0, f"python -m harness: no command is called {name!r}")
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
