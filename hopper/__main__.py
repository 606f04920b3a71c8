"""Programs for sm_100a on a Hopper GPU, with only tcgen05 in software (docs/lab/hopper.md).

python -m hopper run SCRIPT.py [arguments]            run a script on the Hopper GPU of this machine
python -m hopper run --pack OUT.npz SCRIPT.py         emulate it, and write each launch to a file
python -m hopper pack --out A.npz SCRIPT.py           write its launches to a file, as one call
python -m hopper pipeline A.npz B.npz                 time two such files side by side on the GPU

Each takes --help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import b200
from b200 import run_arguments, script
from b200.command_line import Parser, dispatch, told, writable
from b200.reports import records, words
from hopper.errors import HopperError


def run(argv: Sequence[str]) -> int:
    """Run a script or a module on the GPU, or pack each of its launches."""
    parser = Parser("hopper run", "Run a program on a Hopper GPU, with only tcgen05 in software.")
    parser.usage = "hopper run [--pack OUT.npz] SCRIPT.py [arguments]"
    parser.add_argument(
        "--pack", type=writable, metavar="OUT.npz", help="emulate; write each launch to a file"
    )
    own, program = parser.parse_own(argv)
    if not program:
        parser.error("a program is missing: SCRIPT.py, PROGRAM.cu, or -m and a module")
    options = run_arguments.parse(["--no-check", "--", *program])

    def gpu():
        if own.pack:
            from hopper.record import ScriptRecorder

            return ScriptRecorder(own.pack)
        from hopper.backend import HopperGpu

        return HopperGpu()

    return script.run(options, gpu)


def pack(argv: Sequence[str]) -> int:
    """Run a script and pack what it launches, of which nothing is carried out."""
    from hopper.pack import Recorder, packed_launches

    parser = Parser("hopper pack", "Write a script's launches to a file, for hopper pipeline.")
    parser.usage = "hopper pack --out FILE.npz [--launch N] SCRIPT.py [arguments]"
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
    path, arguments = Path(program[0]), program[1:]
    if not path.is_file():
        parser.error(f"{path} is not a file")
    said = "nothing is computed while packing: results that the script prints are not the kernel's"
    print(f"hopper pack: {said}", file=sys.stderr)
    recorder = Recorder()
    b200.install(check=False, gpu=recorder)
    script.start(path, arguments)
    try:
        packed = packed_launches(recorder, options.launch)
    except HopperError as error:
        print(f"hopper pack: {error}", file=sys.stderr)
        return 1
    packed.save(options.out)
    for number, launch in enumerate(recorder.launches):
        print(f"{number}: {words.line(records.of_launch(launch))}", file=sys.stderr)
    print(f"{options.out}: {len(packed.launches)} launch(es) as one call")
    return 0


def pipeline(argv: Sequence[str]) -> int:
    """Load pipelines and epilogues side by side."""
    from hopper.side_by_side import main

    return main(list(argv))


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "pack": pack,
    "pipeline": pipeline,
}


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status; exits with 2 where arguments are wrong."""
    return dispatch("hopper", COMMANDS, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(told("hopper", lambda: main(sys.argv[1:])))
