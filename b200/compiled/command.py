"""`b200 exec`: a build, a test driver or a compiled CUDA program over a B200 in software.

    b200 exec -- cmake -B build    the nvcc that it finds compiles for a B200
    b200 exec -- ctest             programs find a CUDA runtime that runs kernels in software
    b200 exec ./a.out              also one that was compiled elsewhere

Each process that launches tells at its end what was found in it, and ends with status 1 where that
is an error and the program says 0. What a process could not tell (abort, _exit, a signal) is told
when the command is over. Exit status: as of `b200 run`; 2 where the toolkit or Python's library is
missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import b200
from b200 import last_words, run_arguments
from b200.command_line import USAGE, Parser
from b200.compiled import OPTIONS, kit
from b200.host.cuda.errors import BuildError
from b200.reports import journal, options, records, words
from b200.reports.document import ReportedRun
from b200.reports.journal import Journal
from b200.reports.watching import TERMINATED, Watching
from b200.supervised import Supervisor, end_by

_NOT_FOUND, _NOT_RUN = 127, 126  # as a shell has it


def main(argv: Sequence[str]) -> int:
    """Run a command with the software B200 in its environment. The exit status."""
    given = parse(argv)
    try:
        made, python = kit.made(), python_library()
    except BuildError as error:
        print(f"b200 exec: {error}", file=sys.stderr)
        return USAGE
    kept = Journal.new()
    watching = Processes(given, kept, b200.__version__)
    supervisor = Supervisor()
    watching.look()
    if supervisor.fork():
        journal.announce(kept, settings_of(given))
        return _become(given, made, python)
    ended = supervisor.wait(watching.look)
    status = watching.conclude(ended)
    supervisor.over()
    if ended.signal and status == 128 + ended.signal and status != TERMINATED:
        end_by(ended.signal)
    return status


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; `command`, a list of words. Exits with status 2 where they make no sense."""
    parser = Parser("b200 exec", __doc__)
    parser.usage = "b200 exec [options] [--] COMMAND [arguments of the command]"
    run_arguments.add_checks(parser)
    options.add_to(parser)
    given, command = parser.parse_own(argv)
    given.constants = None
    if wrong := run_arguments.contradiction(given):
        parser.error(wrong)
    given.command = command[1:] if command[:1] == ["--"] else command
    if not given.command:
        parser.error("a command is missing")
    return given


def settings_of(given: argparse.Namespace) -> dict[str, object]:
    """Keyword arguments of `b200.install` for each process."""
    return {"check": given.check, "schedule": given.schedule, "timing": given.time}


def python_library() -> Path:
    """The library of this Python, which runs inside of compiled programs. BuildError without."""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    names = [sysconfig.get_config_var(name) for name in ("INSTSONAME", "LDLIBRARY")]
    folders = [folder, os.path.join(sys.base_prefix, "lib"), "/usr/lib/x86_64-linux-gnu"]
    for path in (Path(folder, name) for folder in folders for name in names if name):
        if ".so" in path.name and path.is_file():
            return path
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise BuildError(
        f"this Python has no libpython{version}.so, which a compiled program loads: install the"
        f" system's package libpython{version}, or build Python with --enable-shared"
    )


def _become(given: argparse.Namespace, made: Path, python: Path) -> int:
    """This process becomes the command. The exit status where it cannot."""
    os.environ.update(kit.environment(made, python))
    chosen: dict[str, object] = dataclasses.asdict(options.choice_of(given))
    chosen |= {"expected": [], "used": []}
    os.environ[OPTIONS] = json.dumps({"everything": given.all_findings, "choice": chosen})
    try:
        os.execvp(given.command[0], given.command)
    except FileNotFoundError:
        print(f"b200 exec: {given.command[0]}: no such command", file=sys.stderr)
        return _NOT_FOUND
    except OSError as error:
        print(f"b200 exec: {given.command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_RUN


class Processes(Watching):
    """Tells what the processes of a command have left, and sums up where they were several."""

    name = "b200 exec"

    def _program(self) -> list[str]:
        return ["exec", *self.options.command]

    def _end(self) -> records.JsonRecord:
        """The ends of all processes as one."""
        of = [x for x in self.run.records if x["record"] in (records.END, records.REFUSED)]
        failures = dict.fromkeys(x["failure"] for x in of if x["failure"])
        unasked = [text for x in of for text in x.get("unasked", ())]
        is_program = "/" in self.options.command[0]  # by its path, no tool that is looked up
        said = [last_words.NOTHING] if is_program and not self.run.launches else []
        return {"failure": "\n".join(failures), "unasked": [*failures, *unasked], "said": said}

    def _tell(self, end: records.JsonRecord) -> None:
        untold, everything = self._untold(), self.options.all_findings
        processes = {launch["process"] for launch in self.run.launches}
        why_not = self.choice.why_not
        if len(processes) > 1:  # a test driver may have kept what they have told
            bad = [x for x in self.run.reported() if any(not why_not(f, x) for f in x["findings"])]
            untold = [*untold, *(launch for launch in bad if launch not in untold)]
        main = next(iter(processes)) if len(processes) == 1 else 0
        for text in words.lines(untold, main, (), everything, why_not, self.name):
            print(text, file=sys.stderr)
        if len(processes) > 1:
            count, found = len(self.run.launches), self.run.document(self.choice)["findings"]
            said = f"{len(processes)} processes, {count} launches, {len(found)} finding(s)"
            print(f"b200 exec: {shlex.join(self.options.command)}: {said}", file=sys.stderr)

    def _untold(self) -> list[records.JsonRecord]:
        """Launches behind the last word of their process, or of one that could say none."""
        told: dict[int, int] = {}
        for at, record in enumerate(self.run.records):
            if record["record"] == records.END:
                told[record["process"]] = at
        later = [x for at, x in enumerate(self.run.records) if told.get(x["process"], -1) < at]
        return ReportedRun("", [], records=later).reported()
