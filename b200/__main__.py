"""A B200 in software: runs programs for sm_100a on a CPU.

python -m b200 run SCRIPT.py [arguments]     run a script with a B200 in software in place
python -m b200 run -m MODULE [arguments]     the same of a module: -m pytest tests/test_kernel.py
python -m b200 run PROGRAM.cu [arguments]    compile a CUDA program with a main, and run it
python -m b200 exec -- COMMAND               the same of a compiled program, a build, ctest
python -m b200 report A.json B.json          put reports of runs together: --sarif, --baseline
python -m b200 info                          what this machine can do

Each takes --help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import b200
from b200.command_line import Parser, dispatch, told


def run_program(argv: Sequence[str]) -> int:
    """Run a script, a module or a CUDA program."""
    from b200 import run_arguments
    from b200.script import run

    return run(run_arguments.parse(argv))


def info(argv: Sequence[str]) -> int:
    """What there is on this machine, a line each."""
    from b200 import machine_info

    Parser("b200 info", "What this machine can do.").parse_args(argv)
    for text in machine_info.lines():
        print(text)
    return 0


def report(argv: Sequence[str]) -> int:
    """Reports of several runs as one."""
    from b200.reports.command import main

    return main(argv)


def exec_program(argv: Sequence[str]) -> int:
    """Run a compiled program, or what builds or starts some."""
    from b200.compiled.command import main

    return main(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run_program,
    "exec": exec_program,
    "info": info,
    "report": report,
}


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status; exits with 2 where arguments are wrong."""
    if argv[:1] == ["--version"]:
        print(f"b200 {b200.__version__}")
        return 0
    return dispatch("b200", COMMANDS, argv, __doc__ or "")


def console() -> int:
    """`b200` as a command of its own."""
    return told("b200", lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(console())
