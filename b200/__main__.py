"""python -m b200 run|pack|pipeline|h200-model|info|calibrate|measure ...

python -m b200 run SCRIPT.py [arguments]     run a script with a B200 in software in place
python -m b200 run -m MODULE [arguments]     the same of a module: -m pytest tests/test_kernel.py
python -m b200 run PROGRAM.cu [arguments]    compile a CUDA program with a main, and run it
python -m b200 pack --out A.npz SCRIPT.py    write its launches to a file, for a Hopper GPU
python -m b200 pipeline A.npz B.npz          time two such files side by side on that GPU
python -m b200 info                          what this machine can do
python -m b200 calibrate umma --data FOLDER  compare the clock with published B200 measurements
python -m b200 measure --out FILE            measure the clock's constants on a GPU
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import b200
from b200 import h200_model
from b200.hopper.errors import HopperError
from b200.script import line, run, start

_MODULE = "\0module"  # -m as argparse sees it: the first argument that is no option
CALIBRATIONS = ("umma", "tma", "mainloop", "mcast")


def pack(options: argparse.Namespace) -> int:
    """Run a script and pack what it launches, of which nothing is carried out."""
    from b200.hopper.pack import Recorder, packed_launches

    script = Path(options.script)
    if not script.is_file():
        print(f"b200 pack: {script} is not a file", file=sys.stderr)
        return 2
    said = "nothing is computed while packing: results that the script prints are not the kernel's"
    print(f"b200 pack: {said}", file=sys.stderr)
    recorder = Recorder()
    b200.install(check=False, gpu=recorder)
    start(script, options.arguments)
    try:
        packed = packed_launches(recorder, options.launch)
    except HopperError as error:
        print(f"b200 pack: {error}", file=sys.stderr)
        return 1
    packed.save(options.out)
    for number, launch in enumerate(recorder.launches):
        print(f"{number}: {line(launch)}", file=sys.stderr)
    print(f"{options.out}: {len(packed.launches)} launch(es) as one call")
    return 0


def info(_options: argparse.Namespace) -> int:
    """What there is on this machine, a line each."""
    import torch

    from b200.host.features import FEATURES
    from b200.host.takeover import missing

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    gpu = "none: programs run in software"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        gpu = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
        gpu += {10: ": runs sm_100a", 9: ": --device hopper, tcgen05 in software"}.get(major, "")
    cores = len(os.sched_getaffinity(0))
    print(f"b200 {b200.__version__}, Python {sys.version.split()[0]}, {cores} cores")
    print(f"GPU: {gpu}")
    for package in ("torch", "nvidia-cutlass-dsl", "cuda-python", "numpy"):
        print(f"{package}: {version(package)}")
    print(f"nvcc: {shutil.which('nvcc') or 'not found: raw CUDA programs cannot be compiled'}")
    gone = list(filter(None, map(missing, FEATURES)))
    print(f"taken over: {len(FEATURES) - len(gone)} of {len(FEATURES)} features")
    print(*(f"  refused: {reason}" for reason in gone), sep="\n", end="\n" if gone else "")
    return 0


def calibrate(options: argparse.Namespace) -> int:
    """Print the clock's errors against a published table."""
    module = importlib.import_module(f"b200.clock.calibrations.{options.name}")
    if options.name == "mainloop":  # compiles with the CuTe DSL
        module.main(options.arguments, b200.install(check=False))
    else:
        module.main(options.arguments)
    return 0


def measure(argv: list[str]) -> int:
    """Measure the clock's constants."""
    from b200.measure.command import main

    return main(argv)


def pipeline(argv: list[str]) -> int:
    """Load pipelines and epilogues side by side."""
    from b200.hopper.side_by_side import main

    return main(argv)


OWN_ARGUMENTS = {
    "measure": measure,
    "h200-model": h200_model.main,
    "pipeline": pipeline,
}  # argparse passes on no leading option
FORMER = {"twin": "h200-model"}  # names that commands had


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m b200",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("run", help="run a script with a B200 in software in place")
    command.set_defaults(function=run, module="")
    command.add_argument(
        "--check",
        action="store_true",
        default=True,
        help="look for races and protocol errors (default)",
    )
    command.add_argument(
        "--check=all",
        dest="check",
        action="store_const",
        const="all",
        help="check every cluster, also those that repeat what a checked one has done",
    )
    command.add_argument(
        "--no-check", dest="check", action="store_const", const=False, help="do not check"
    )
    command.add_argument(
        "--time", action="store_true", help="model the time of each launch; nothing is checked"
    )
    command.add_argument(
        "--constants",
        type=Path,
        metavar="FILE",
        help="constants of the clock, as `b200 measure --out` writes them",
    )
    command.add_argument(
        "--schedule",
        metavar="ORDER",
        help="another order of warps and completions: early, late or random:SEED; pdl: dependent"
        " launches overlap; all: search for an order that ends in a deadlock",
    )
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 also for remarks, and where a part could not be checked",
    )
    command.add_argument(
        "--device",
        choices=("emulator", "hopper"),
        default="emulator",
        help="hopper: on a Hopper GPU, with only tcgen05 in software",
    )
    command.add_argument(
        "--pack",
        type=Path,
        metavar="OUT.npz",
        help="write each launch to a file, for a Hopper GPU elsewhere",
    )
    command.add_argument(
        "--again",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run a program that fails once more with --schedule late (default)",
    )
    command.add_argument(
        "--report", type=Path, metavar="FILE.json", help="write status and findings as JSON"
    )
    command.add_argument(
        "script", help="SCRIPT.py, PROGRAM.cu with a main, or -m and the name of a module"
    )
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the script; -- may lead"
    )

    command = commands.add_parser(
        "pack", help="write a script's launches to a file, for b200 pipeline"
    )
    command.set_defaults(function=pack)
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE.npz", help="the file to write"
    )
    command.add_argument(
        "--launch",
        type=int,
        action="append",
        metavar="N",
        help="pack only launch N, counted from 0; repeatable",
    )
    command.add_argument("script", help="the script that launches")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")

    command = commands.add_parser("info", help="what this machine can do")
    command.set_defaults(function=info)

    command = commands.add_parser("calibrate", help="compare the clock with published measurements")
    command.set_defaults(function=calibrate)
    command.add_argument("name", choices=CALIBRATIONS, help="the published data set")
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="--data FOLDER, --rows, --all (docs/timing.md)"
    )

    commands.add_parser("measure", help="measure the clock's constants on a GPU")
    commands.add_parser("pipeline", help="time two packs side by side on a Hopper GPU")
    commands.add_parser("h200-model", help="model a pack's load pipeline with an H200's constants")

    if argv and argv[0] in FORMER:
        print(f"b200 {argv[0]} is now: b200 {FORMER[argv[0]]}", file=sys.stderr)
        argv = [FORMER[argv[0]], *argv[1:]]
    if argv and argv[0] in OWN_ARGUMENTS:
        return OWN_ARGUMENTS[argv[0]](argv[1:])
    options = parser.parse_args(_MODULE if a == "-m" else a for a in argv)
    given = ["-m" if a == _MODULE else a for a in getattr(options, "arguments", ())]
    if getattr(options, "script", None) == _MODULE:
        if options.function is not run or not given:
            parser.error("-m is of `b200 run`, and takes the name of a module")
        options.script, options.module = "", given.pop(0)
    options.arguments = given[1:] if given[:1] == ["--"] else given
    return options.function(options)


def console() -> int:
    """`b200` as a command of its own."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(console())
