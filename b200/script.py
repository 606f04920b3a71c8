"""`python -m b200 run`: a script, a module or a CUDA program with a `main` over a B200 in software.

The program runs in a process of its own (supervised.py). What it launches and finds goes into a
journal (reports/), so the process that stays tells all of it, however the program has ended.

Exit status: the program's own, if it is not 0; else 1 if the checker found an error, a launch
faulted or hung, an expected kernel was not launched, or the program has not looked at the status of
a launch that was refused; 2 for bad arguments, and for a file that defines functions and calls
none; 120 where the output cannot be written; 130 after Ctrl-C, 143 after SIGTERM.
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
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import b200
from b200 import last_words, second_run, started
from b200.checker.finding import explained
from b200.command_line import USAGE, cannot_write, no_program
from b200.errors import SetupError
from b200.program.names import from_here
from b200.reports import journal, recorder, records
from b200.reports.journal import Journal
from b200.reports.watching import TERMINATED, Watching
from b200.supervised import GRACE, Supervisor, end_by

if TYPE_CHECKING:
    from b200.chip.gpu import Gpu
    from b200.clock import Options
    from b200.program.module import Program

INTERRUPTED = 130
CUDA = (".cu", ".cpp", ".cc")
STDIN = "-"
LONGEST_NAME = 80  # of a file that is named by a kernel
SILENT = 30.0  # seconds of one launch before it is said where it is
_OURS = (str(Path(__file__).resolve().parent), runpy.__file__, "<frozen runpy>")


def run(options: argparse.Namespace, gpu: Callable[[], Gpu] | None = None) -> int:
    """Run a program as `python` would, its launches in software; says what they were. options: as
    run_arguments.parse gives them. gpu: makes what launches kernels in the emulator's place, in the
    program's process; may raise SetupError.
    """
    folder = tempfile.mkdtemp(prefix="b200-") if options.script == STDIN else ""
    if folder:  # a file: front ends compile from its lines
        options.script = str(Path(folder, "stdin.py"))
        Path(options.script).write_bytes(sys.stdin.buffer.read())
    wrong = _not_there(options)
    if wrong:
        print(f"b200 run: {wrong}", file=sys.stderr)
        return USAGE
    supervisor, kept, started = Supervisor(), Journal.new(), time.monotonic()
    watching = Watching(options, kept, b200.__version__)
    watching.look()
    if supervisor.fork():
        return _program(options, kept, gpu)
    ended = supervisor.wait(watching.look)
    status = watching.conclude(ended)
    supervisor.over()
    if gpu is None:
        _run_again_if_it_may_help(options, watching, time.monotonic() - started)
    if folder:
        shutil.rmtree(folder)
    if ended.signal and status == 128 + ended.signal and status != TERMINATED:
        end_by(ended.signal)
    return status


def _program(options: argparse.Namespace, kept: Journal, other: Callable[[], Gpu] | None) -> int:
    """The side of the program: runs it, and records how it ended. Its exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    plain = other is None and not options.time
    journal.announce(kept, {"check": options.check, "schedule": options.schedule} if plain else {})
    if plain:
        started.follow()
    try:
        gpu = b200.install(check=False, gpu=other()) if other else _install(options)
    except SetupError as error:
        print(f"b200 run: {error}", file=sys.stderr)
        return USAGE
    recording = recorder.attach(gpu, kept)
    open_end = contextlib.ExitStack()  # closed where the program ends as programs do
    open_end.callback(lambda: kept.add(_end(0, "", [])))
    recorder.before_an_abrupt_end(open_end.close)
    with telling_where(gpu):
        status, failure, stopped, told = _status_of(options)
    end = _end(status, failure, told) | {"stopped": stopped}
    launched = recording.count > 0 or _launched(kept)
    idle = "" if status or launched or options.may_launch_nothing else _only_defines(options)
    said = list(_last_words(gpu, launched, status, idle))
    written = _write_ptx(options.ptx, gpu.programs) if options.ptx else True
    open_end.pop_all()
    kept.add(end | {"said": said, "idle": bool(idle), "unwritten": not written})
    return status


def _launched(kept: Journal) -> bool:
    """Whether a process of the run has launched a kernel."""
    found, _ = kept.read()
    return any(r["record"] in (records.LAUNCH, records.FAILED, records.SO_FAR) for r in found)


def _end(status: int, failure: str, told: list[str]) -> records.JsonRecord:
    """The record of the program's end. told: reports that are on stderr already."""
    recorder.sync()
    end = {"record": records.END, "process": os.getpid(), "unasked": b200.unasked()}
    return end | {"status": status, "failure": failure, "told": told, "said": b200.unasked()}


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


def _only_defines(options: argparse.Namespace) -> str:
    """As last_words has it; "" for a module and a CUDA program."""
    script = Path(options.script)
    return "" if options.module or script.suffix in CUDA else last_words.only_defines(script)


def _last_words(gpu: Gpu, launched: bool, status: int, idle: str) -> Iterator[str]:
    """What the launches do not show. idle: why nothing was launched, "" if nobody knows."""
    yield from last_words.standing_clocks(gpu)
    yield from b200.unasked()
    if not (launched or b200.unasked()):
        if not status:
            yield f"{last_words.NOTHING}: {idle}" if idle else last_words.NOTHING
        if said := last_words.front_end():
            yield said


@contextlib.contextmanager
def telling_where(gpu: Gpu, silent: float = SILENT) -> Generator[None]:
    """Say on stderr where a launch is that takes longer than `silent` seconds, and again after
    twice as long: a loop that never ends and has effects is no deadlock, and cannot be told from a
    long one.
    """
    over = threading.Event()

    def watch() -> None:
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
        return "" if script.suffix in CUDA else no_program(script)
    sys.path[0] = os.getcwd()  # what `python -m` puts there
    try:
        found = importlib.util.find_spec(options.module)
    except ImportError as error:
        return f"-m {options.module}: {error}"
    return "" if found else f"-m {options.module}: there is no such module"


def _status_of(options: argparse.Namespace) -> tuple[int, str, bool, list[str]]:
    """Run the script: its exit status, what went wrong in a line, "" if nothing did, whether that
    is a launch that came to no end, and the reports of launches that are on stderr by then.
    """
    from b200.host.cuda.errors import BuildError

    try:
        if options.module:
            return *_ended(start_module(options.module, options.arguments)), []
        return *_ended(start(Path(options.script), options.arguments, options.sources)), []
    except (b200.EmulatorError, BuildError) as error:
        said = error.told() if isinstance(error, b200.EmulatorError) else str(error)
        print(from_here(f"b200 run: {said}"), file=sys.stderr)
        if isinstance(error, b200.EmulatorError):
            kinds = error.kind, *(finding.kind for finding in error.findings)
            if where := explained(kinds):
                print(f"b200 run: {where}", file=sys.stderr)
        launched = isinstance(error, b200.EmulatorError) and error.kind in records.WRONG
        return 1, str(error).partition("\n")[0] if launched else "", launched, [said]
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return *_ended(error.code), []
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is on the way to its end
        _print_without_our_frames(error)
        return INTERRUPTED, "", False, _reports_in(error)
    except Exception as error:  # noqa: BLE001  the script's own, told as Python would
        _print_without_our_frames(error)
        failure = f"{type(error).__name__}: {error}".partition("\n")[0]
        return 1, failure, False, _reports_in(error)


def _reports_in(error: BaseException) -> list[str]:
    """The reports of launches that a traceback has shown: of what has led to the error."""
    found: list[str] = []
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, b200.EmulatorError):
            found.append(each.told())
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return found


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
        part.stack = traceback.StackSummary.from_list(_without_ours(part.stack))
        parts += [nested for nested in (part.__cause__, part.__context__) if nested is not None]
    print("".join(told.format()), file=sys.stderr, end="")


def _without_ours(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Frames of the program. A kernel's, which is called by ours, is in no file."""
    kept: list[traceback.FrameSummary] = []
    in_ours = False
    for frame in stack:
        is_ours = frame.filename.startswith(_OURS)
        in_ours = is_ours or in_ours and frame.filename.startswith("<")
        if not in_ours:
            kept.append(frame)
    return kept


def _write_ptx(folder: Path, programs: Sequence[Program]) -> bool:
    """Write what `--ptx` asks for, a file a module. Whether that was possible."""
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
        return False
    print(f"b200 run: the PTX of {len(programs)} module(s) is in {folder}", file=sys.stderr)
    return True


def _run_again_if_it_may_help(
    options: argparse.Namespace, watching: Watching, seconds: float
) -> None:
    """A program that has failed in the usual order, after so many seconds, once more."""
    end = watching.run.end
    failure = end.get("failure", "")
    usual = not (options.schedule or options.time)
    if failure and usual and options.again and seconds < second_run.LONGEST:
        found = watching.run.document(watching.choice)["findings"]
        second_run.tell(options, failure, end["stopped"], found)
