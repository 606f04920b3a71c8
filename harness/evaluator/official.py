"""An organiser's problem folder, run by its own harness in the way of its own runner, on the B200
in software.

    python eval.py official FOLDER                  the test cases of FOLDER/task.yml
    python eval.py official FOLDER leaderboard      its benchmark cases, checked and timed

FOLDER is one as in gpu-mode/reference-kernels, problems/nvidia: task.yml names the files, which are
laid beside the submission in a scratch directory. As their runner does (gpu-mode/kernelbot,
run_eval.py), `python submission.py` runs alone first, then `python eval.py MODE CASEFILE` with
POPCORN_FD a pipe, and POPCORN_SEED where --seed is given. Both have the software B200 installed,
and so has the worker that their eval.py spawns. What their harness writes into the pipe is printed
as it comes; what it and the checker say on stderr stays there. Last comes what `eval.py lint` has
to say of the file, on stderr. Exit status: their harness's, else that of lint.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.lint import command as lint

ROOT = Path(__file__).resolve().parents[2]
MODES = ("test", "benchmark", "leaderboard", "profile")
SUBMISSION = "@SUBMISSION@"  # in task.yml: the submitted file


class OfficialError(Exception):
    """The folder cannot be run; str() is one line."""


@dataclass(frozen=True)
class Folder:
    """A problem folder. files: name in the scratch directory -> its source, None for the
    submission. main: the harness among them. cases: mode -> lines of the case file.
    """

    files: Mapping[str, Path | None]
    main: str
    cases: Mapping[str, Sequence[str]]


def read(folder: Path) -> Folder:
    """The folder's task.yml. Raises OfficialError that names what is missing."""
    try:
        import yaml
    except ImportError:
        raise OfficialError(
            "task.yml needs PyYAML: python -m pip install 'nvfp4-b200[official]'"
        ) from None
    path = folder / "task.yml"
    if not path.is_file():
        raise OfficialError(f"{path} is not a file; expected a problem folder of the organisers")
    try:
        task = yaml.safe_load(path.read_text())
        files = {
            entry["name"]: None if entry["source"] == SUBMISSION else folder / entry["source"]
            for entry in task["files"]
        }
        tests, benchmarks = task["tests"], task["benchmarks"]
        main = task["config"]["main"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OfficialError(f"{path} is not a problem's task.yml: {problem}") from None
    for source in files.values():
        if source is not None and not source.is_file():
            raise OfficialError(f"{path} names {source}, which is not a file")
    lines = {mode: [line_of(case) for case in benchmarks] for mode in MODES}
    return Folder(files, main, lines | {"test": [line_of(case) for case in tests]})


def line_of(case: Mapping[str, Any]) -> str:
    """A case as a line of their case file."""
    return "; ".join(f"{key}: {value}" for key, value in case.items())


def lay_out(folder: Folder, submission: Path, scratch: Path) -> None:
    """Put the files of the folder and the submission beside each other."""
    for name, source in folder.files.items():
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((source or submission).read_bytes())


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("POPCORN")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | dict(extra)


def _command(arguments: argparse.Namespace, *script: str) -> list[str]:
    options = ["--time"] if arguments.mode in ("benchmark", "leaderboard") else []
    return [sys.executable, "-m", "b200", "run", *options, *script]


def run(arguments: argparse.Namespace, folder: Folder, scratch: Path) -> int:
    """Run the folder's two programs; what the second writes into its pipe goes to stdout.
    Returns the exit status.
    """
    alone = subprocess.run(
        _command(arguments, "--may-launch-nothing", "submission.py"),
        cwd=scratch,
        env=_environment({}),
        stdout=sys.stderr,
    )
    if alone.returncode:
        print(f"eval.py official: `python submission.py` ended with {alone.returncode}")
        return alone.returncode
    lines = arguments.case or folder.cases[arguments.mode]
    (scratch / "cases.txt").write_text("\n".join(lines))
    reader, writer = os.pipe()
    extra = {"POPCORN_FD": str(writer), "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    if arguments.seed is not None:
        extra["POPCORN_SEED"] = str(arguments.seed)
    with subprocess.Popen(
        # Once: a second run of what fails would not have the pipe.
        _command(arguments, "--no-again", folder.main, arguments.mode, "cases.txt"),
        cwd=scratch,
        env=_environment(extra),
        stdout=sys.stderr,
        pass_fds=[writer],
        start_new_session=True,
    ) as process:
        os.close(writer)
        try:
            with os.fdopen(reader) as pipe:
                for line in pipe:
                    print(line, end="", flush=True)
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """End what is still running of the harness, its workers included."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = Parser("eval.py official", __doc__, OfficialError)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the problem's folder")
    parser.add_argument(
        "mode", nargs="?", choices=MODES, default="test", help="what to run (default test)"
    )
    parser.add_argument(
        "--submission",
        type=Path,
        default=ROOT / "submission.py",
        metavar="FILE",
        help="the file with custom_kernel (default: submission.py of the checkout)",
    )
    parser.add_argument(
        "--case", action="append", metavar="TEXT", help="a case in place of task.yml's; repeatable"
    )
    parser.add_argument("--seed", type=int, help="the runner's secret seed")
    try:
        arguments = parser.parse_args(argv)
        if not arguments.submission.is_file():
            raise OfficialError(f"no submission at {arguments.submission}")
        folder = read(arguments.folder)
    except OfficialError as error:
        print(f"eval.py official: {error}", file=sys.stderr)
        return 2
    timed = "modelled times" if arguments.mode in ("benchmark", "leaderboard") else "checker on"
    print(
        f"{arguments.folder}: {folder.main} {arguments.mode} on a B200 in software ({timed})",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(prefix="official-") as scratch:
        lay_out(folder, arguments.submission, Path(scratch))
        status = run(arguments, folder, Path(scratch))
    refused = lint.last_step(arguments.submission, [arguments.folder.name], sys.stderr)
    return status or refused
