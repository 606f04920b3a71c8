"""`python -m b200 run`: a script, a module or a CUDA program with a `main` over a B200 in software.

Exit status: the program's own, if it is not 0; else 1 if the checker found an error, the program
ended with one, or has not looked at the status of a launch that was refused; 2 for bad arguments,
and for a file that defines functions and calls none; 120 where the output cannot be written; 143
after SIGTERM.
Remarks (portability, notes) are printed and change nothing.

What goes wrong in the usual order of warps and completions may go right in another, and on a GPU by
its timing: a program that fails is run once more with `--schedule late` (second_run.py).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib.util
import io
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import b200
from b200 import last_words, second_run
from b200.checker.finding import ERROR, SHOWN, explained
from b200.command_line import UNWRITTEN, USAGE, cannot_write, undecodable
from b200.hopper.errors import HopperError
from b200.program.names import from_here, readable

if TYPE_CHECKING:
    from b200.chip.gpu import Gpu
    from b200.chip.launch import Launch
    from b200.clock import Options
    from b200.program.module import Program

TERMINATED = 143
GRACE = 3.0  # seconds from SIGTERM to the end of the process
CUDA = (".cu", ".cpp", ".cc")
LONGEST_NAME = 80  # of a file that is named by a kernel
SILENT = 30.0  # seconds of one launch before it is said where it is
_OURS = (str(Path(__file__).resolve().parent), runpy.__file__, "<frozen runpy>")


def run(options: argparse.Namespace) -> int:
    """Run a program as `python` would, its launches in software; says what they were. options: as
    run_arguments.parse gives them.
    """
    wrong = _not_there(options)
    if wrong:
        print(f"b200 run: {wrong}", file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, _terminated)
    started = time.monotonic()
    try:
        gpu = _install(options)
    except HopperError as error:
        print(f"b200 run: {error}", file=sys.stderr)
        return USAGE
    with telling_where(gpu):
        status, failure, stopped = _status_of(options)
    _tell(gpu.launches, options.all_findings)
    idle = "" if status or gpu.launches or options.may_launch_nothing else _only_defines(options)
    for text in _last_words(gpu, status, idle):
        print(f"b200 run: {text}", file=sys.stderr)
    errors = [f for launch in gpu.launches for f in launch.findings or () if f.severity == ERROR]
    bad = bool(errors or b200.unasked())
    if options.strict:
        checked = [x for x in gpu.launches if x.findings is not None and not x.incomplete]
        bad |= len(checked) < max(len(gpu.launches), 1) or any(x.findings for x in checked)
    status = status or int(bad)
    if idle and not status:
        status = USAGE
    if options.ptx:
        status = _write_ptx(options.ptx, status, gpu.programs)
    if options.report:
        why = failure or "\n".join(b200.unasked())
        status = _write_report(options.report, status, why, gpu.launches)
    usual = options.device == "emulator" and not (options.schedule or options.time or options.pack)
    if failure and usual and options.again and time.monotonic() - started < second_run.LONGEST:
        second_run.tell(options, failure, stopped)
    return status


def _terminated(*_: object) -> None:
    """SIGTERM: end as sys.exit does. A large launch has millions of objects, which the interpreter
    would look through before it ends; where the program catches SystemExit, as pytest does for each
    test, the process ends without more after GRACE seconds.
    """
    gc.disable()
    gc.freeze()
    backstop = threading.Timer(GRACE, os._exit, (TERMINATED,))
    backstop.daemon = True
    backstop.start()
    sys.exit(TERMINATED)


def _tell(launches: Sequence[Launch], everything: bool) -> None:
    """Say on stderr what was launched and found."""
    for text, group in groupby(line(launch, everything) for launch in launches):
        count = len(list(group))
        print(from_here(text if count == 1 else f"{count} times: {text}"), file=sys.stderr)
    if where := explained(f.kind for launch in launches for f in launch.findings or ()):
        print(f"b200 run: {where}", file=sys.stderr)


def _only_defines(options: argparse.Namespace) -> str:
    """As last_words has it; "" for a module and a CUDA program."""
    script = Path(options.script)
    return "" if options.module or script.suffix in CUDA else last_words.only_defines(script)


def _last_words(gpu: Gpu, status: int, idle: str) -> Iterator[str]:
    """What the launches do not show. idle: why nothing was launched, "" if nobody knows."""
    yield from last_words.standing_clocks(gpu)
    yield from b200.unasked()
    if not (gpu.launches or b200.unasked()):
        if not status:
            yield f"{last_words.NOTHING}: {idle}" if idle else last_words.NOTHING
        if said := last_words.front_end():
            yield said


@contextlib.contextmanager
def telling_where(gpu: Gpu, silent: float = SILENT) -> Iterator[None]:
    """Say on stderr where a launch is that takes longer than `silent` seconds, and again after
    twice as long: a loop that never ends and has effects is no deadlock, and cannot be told from a
    long one.
    """
    over = threading.Event()

    def watch():
        seen, since, next_time = None, time.monotonic(), silent
        while not over.wait(silent / 4):
            now = id(getattr(getattr(gpu, "machine", None), "hits", None)), len(gpu.launches)
            if now != seen:
                seen, since, next_time = now, time.monotonic(), silent
            elif time.monotonic() - since >= next_time:
                next_time *= 2
                with contextlib.suppress(RuntimeError):  # what is looked at changes meanwhile
                    if places := b200.at_work():
                        seconds = time.monotonic() - since
                        print(f"b200 run: {seconds:.0f} s in one launch, at", file=sys.stderr)
                        print(*(f"  {from_here(p)}" for p in places), sep="\n", file=sys.stderr)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _install(options: argparse.Namespace) -> Gpu:
    """The GPU that the script is to see."""
    if options.pack:
        from b200.hopper.record import ScriptRecorder

        return b200.install(check=False, gpu=ScriptRecorder(options.pack))
    if options.device == "hopper":
        from b200.hopper.backend import HopperGpu

        return b200.install(gpu=HopperGpu())
    timing: bool | Options = False
    if options.time:
        from b200.clock import Options

        timing = Options(constants=options.constants or {})
    return b200.install(check=options.check, timing=timing, schedule=options.schedule)


def _not_there(options: argparse.Namespace) -> str:
    """What is wrong with the name of the script or module, "" if there is one."""
    if not options.module:
        script = Path(options.script)
        if not script.is_file():
            return f"{script} is not a file"
        missing = [source for source in options.sources if not source.is_file()]
        if missing:
            return f"--with {missing[0]}: it is not a file"
        if options.sources and script.suffix not in CUDA:
            return f"--with is for CUDA programs, {script} is none"
        return "" if script.suffix in CUDA else undecodable(script)
    sys.path[0] = os.getcwd()  # what `python -m` puts there
    try:
        found = importlib.util.find_spec(options.module)
    except ImportError as error:
        return f"-m {options.module}: {error}"
    return "" if found else f"-m {options.module}: there is no such module"


def _status_of(options: argparse.Namespace) -> tuple[int, str, bool]:
    """Run the script: its exit status, what went wrong in a line, "" if nothing did, and whether
    that is a launch that came to no end.
    """
    from b200.host.cuda.errors import BuildError

    try:
        if options.module:
            return _ended(start_module(options.module, options.arguments))
        return _ended(start(Path(options.script), options.arguments, options.sources))
    except (b200.EmulatorError, BuildError) as error:
        said = error.told() if isinstance(error, b200.EmulatorError) else str(error)
        print(from_here(f"b200 run: {said}"), file=sys.stderr)
        if isinstance(error, b200.EmulatorError):
            kinds = error.kind, *(finding.kind for finding in error.findings)
            if where := explained(kinds):
                print(f"b200 run: {where}", file=sys.stderr)
        launched = isinstance(error, b200.EmulatorError) and error.kind in ("fault", "deadlock")
        return 1, str(error).partition("\n")[0] if launched else "", launched
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return _ended(error.code)
    except Exception as error:  # noqa: BLE001  the script's own, told as Python would
        _print_without_our_frames(error)
        return 1, f"{type(error).__name__}: {error}".partition("\n")[0], False


def _ended(code: object) -> tuple[int, str, bool]:
    status = code if isinstance(code, int) else int(code is not None)
    return status & 0xFF, f"exit status {status}" if status else "", False


def start(script: Path, arguments: Sequence[str], sources: Sequence[Path] = ()) -> int:
    """Run a script as `python SCRIPT` would, or a CUDA program as itself; its status. sources: the
    program's other files.
    """
    if script.suffix in CUDA:
        return b200.run_cuda(script, arguments, sources)
    atexit.register(_flush)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)  # what `python SCRIPT` puts there
    runpy.run_path(str(script), run_name="__main__")
    return 0


def start_module(name: str, arguments: Sequence[str]) -> int:
    """Run a module as `python -m NAME` would; its status."""
    atexit.register(_flush)
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    return 0


def _flush() -> None:
    """Write out files that a script has left open, as the interpreter does when it takes the module
    __main__ apart; names of a script that runpy has run can outlive it.
    """
    for file in gc.get_objects():
        if type(file) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # its other end, or the file, is closed
                file.flush()


def _print_without_our_frames(error: BaseException) -> None:
    """A traceback of the program, without what calls it and what stands between it and torch."""
    told = traceback.TracebackException.from_exception(error)
    parts = [told]
    while parts:
        part = parts.pop()
        kept = [frame for frame in part.stack if not frame.filename.startswith(_OURS)]
        part.stack = traceback.StackSummary.from_list(kept)
        parts += [nested for nested in (part.__cause__, part.__context__) if nested is not None]
    print("".join(told.format()), file=sys.stderr, end="")


def line(launch: Launch, everything: bool = False) -> str:
    """One launch of the script: its shape, its modelled time or its findings, the first SHOWN or
    everything.
    """
    text = f"b200: {readable(launch.kernel)}, grid {launch.grid}, cluster {launch.cluster}"
    time_of = launch.time
    if time_of is not None:
        text += f", modelled {time_of.time_us:.2f} us"
    found = launch.findings or []
    for finding in found if everything else found[:SHOWN]:
        text += f"\n{finding}"
    if len(found) > SHOWN and not everything:
        text += f"\n... {len(found) - SHOWN} more: --all-findings"
    for reason in launch.incomplete:
        text += f"\nthe check is incomplete: {reason}"
    return text if launch.orders is None else f"{text}\n{launch.orders}"


def _write_ptx(folder: Path, status: int, programs: Sequence[Program]) -> int:
    """Write what `--ptx` asks for, a file a module. Returns the exit status."""
    taken: Counter[str] = Counter()
    path = folder
    try:
        folder.mkdir(exist_ok=True)
        for program in programs:
            first = next(iter(program.kernels), "module")
            name = re.sub(r"[^\w.-]", "_", first)[:LONGEST_NAME]
            number = f".{taken[name]}" if taken[name] else ""
            taken[name] += 1
            path = folder / f"{name}{number}.ptx"
            path.write_text(program.text)
    except OSError as error:
        print(f"b200 run: --ptx: {cannot_write(path, error)}", file=sys.stderr)
        return status or UNWRITTEN
    print(f"b200 run: the PTX of {len(programs)} module(s) is in {folder}", file=sys.stderr)
    return status


def _write_report(path: Path, status: int, failure: str, launches: Sequence[Launch]) -> int:
    """Write what `--report` asks for. Returns the exit status."""
    try:
        path.write_text(json.dumps(_report(status, failure, launches), indent=1))
    except OSError as error:
        print(f"b200 run: --report: {cannot_write(path, error)}", file=sys.stderr)
        return status or UNWRITTEN
    return status


def _report(status: int, failure: str, launches: Sequence[Launch]) -> dict[str, Any]:
    """What `--report` writes. failure: "" or a line, as `_status_of` has it."""
    findings = [
        {"severity": f.severity, "kind": f.kind, "loc": f.loc, "diagnosis": f.diagnosis}
        for launch in launches
        for f in launch.findings or ()
    ]
    known = ({**f, "times": findings.count(f)} for f in findings)
    return {
        "status": status,
        "failure": failure,
        "launches": len(launches),
        "incomplete": list(
            dict.fromkeys(text for launch in launches for text in launch.incomplete)
        ),
        "findings": list({repr(f): f for f in known}.values()),
    }
