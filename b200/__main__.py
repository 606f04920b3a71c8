"""A B200 in software: runs programs for sm_100a on a CPU.

python -m b200 run SCRIPT.py [arguments]     run a script with a B200 in software in place
python -m b200 run -m MODULE [arguments]     the same of a module: -m pytest tests/test_kernel.py
python -m b200 run PROGRAM.cu [arguments]    compile a CUDA program with a main, and run it
python -m b200 exec -- COMMAND               the same of a compiled program, a build, ctest
python -m b200 pack --out A.npz SCRIPT.py    write its launches to a file, for a Hopper GPU
python -m b200 pipeline A.npz B.npz          time two such files side by side on that GPU
python -m b200 report A.json B.json          put reports of runs together: --sarif, --baseline
python -m b200 info                          what this machine can do
python -m b200 measure --out FILE            measure the clock's constants on a GPU

Each takes --help.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import b200
from b200 import run_arguments
from b200.command_line import USAGE, Parser, told, writable
from b200.hopper.errors import HopperError
from b200.reports import records, words
from b200.script import run, start


def run_program(argv: Sequence[str]) -> int:
    """Run a script, a module or a CUDA program."""
    return run(run_arguments.parse(argv))


def pack(argv: Sequence[str]) -> int:
    """Run a script and pack what it launches, of which nothing is carried out."""
    from b200.hopper.pack import Recorder, packed_launches

    parser = Parser("b200 pack", "Write a script's launches to a file, for b200 pipeline.")
    parser.usage = "b200 pack --out FILE.npz [--launch N] SCRIPT.py [arguments]"
    parser.add_argument(
        "--out", type=writable, required=True, metavar="FILE.npz", help="the file to write"
    )
    parser.add_argument(
        "--launch",
        type=int,
        action="append",
        metavar="N",
        help="pack only launch N, counted from 0; repeatable",
    )
    options, program = parser.parse_own(argv)
    if not program:
        parser.error("a script is missing")
    script, arguments = Path(program[0]), program[1:]
    if not script.is_file():
        parser.error(f"{script} is not a file")
    said = "nothing is computed while packing: results that the script prints are not the kernel's"
    print(f"b200 pack: {said}", file=sys.stderr)
    recorder = Recorder()
    b200.install(check=False, gpu=recorder)
    start(script, arguments)
    try:
        packed = packed_launches(recorder, options.launch)
    except HopperError as error:
        print(f"b200 pack: {error}", file=sys.stderr)
        return 1
    packed.save(options.out)
    for number, launch in enumerate(recorder.launches):
        print(f"{number}: {words.line(records.of_launch(launch))}", file=sys.stderr)
    print(f"{options.out}: {len(packed.launches)} launch(es) as one call")
    return 0


def info(argv: Sequence[str]) -> int:
    """What there is on this machine, a line each."""
    from b200 import machine_info

    Parser("b200 info", "What this machine can do.").parse_args(argv)
    for text in machine_info.lines():
        print(text)
    return 0


def measure(argv: Sequence[str]) -> int:
    """Measure the clock's constants."""
    from b200.measure.command import main

    return main(list(argv))


def pipeline(argv: Sequence[str]) -> int:
    """Load pipelines and epilogues side by side."""
    from b200.hopper.side_by_side import main

    return main(list(argv))


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
    "pack": pack,
    "pipeline": pipeline,
    "info": info,
    "measure": measure,
    "report": report,
}


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status; exits with 2 where arguments are wrong."""
    name = argv[0] if argv else ""
    if name in COMMANDS:
        return COMMANDS[name](argv[1:])
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name == "--version":
        print(f"b200 {b200.__version__}")
        return 0
    print(f"b200: {_no_command(name)}", file=sys.stderr)
    return USAGE


def _no_command(name: str) -> str:
    known = f"the commands are {', '.join(COMMANDS)}; see --help"
    if not name:
        return f"a command is missing: {known}"
    if near := difflib.get_close_matches(name, COMMANDS, 1):
        return f"no command is called {name}: did you mean {near[0]}? {known}"
    if Path(name).is_file():
        return f"no command is called {name}: to run it, b200 run {name}"
    return f"no command is called {name}: {known}"


def console() -> int:
    """`b200` as a command of its own."""
    return told("b200", lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(console())
