"""python -m lab corpus FOLDER [--only TEXT] [--seconds N] [--python PATH]

Public programs and what is to be said of each: docs/lab/corpus.json names the file, its repository
and commit, the command, the expected verdict, and the findings by severity, kind and line. There is
no code of theirs here: FOLDER holds the repositories' work trees, each as OWNER+NAME (the slash of
its name a plus). A program runs in a process of its own: a script as `python -m b200 run` runs it,
a file of tests as `python -m b200 run -m pytest` does, a contest's submission by `eval.py test`.

Verdicts: `clean`; `portability` (outside what PTX promises, and no error); `errors` (each was read
in the source); `refused` (names what is not modelled, by design); `fails` (the program ends with an
error, on a GPU, too: its own, a wrong result, a fault or a deadlock). A verdict that is not the
expected one is shown with its findings.

--only: files whose path has the text. --seconds: of CPU time, after which a program is stopped
(default 120; by the clock, ten times as many). --python: the interpreter whose packages the
programs take; those that need a newer or older CuTe DSL than it has, or a package that is not
there, are left out.
Exit status: 0 all as expected, 1 some are not, 2 there is nothing to run.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from lab import limits

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "docs" / "lab" / "corpus.json"
WAIT = 10  # of the clock for one of the CPU: other processes run, too
TERMINATED = 143
RUNNERS = ("script", "pytest", "eval")
# A finding in a message of eval.py, as Finding.message begins.
FINDING = re.compile(
    r"(?P<loc>\S.*?:\d+): (?P<kind>[a-z]+)(?: \((?P<severity>portability|note)\))?: "
)
REFUSALS = ("not modelled", "unsupported: ", "is not in the software")  # what a program needs
VERDICTS = ("clean", "portability", "errors", "refused", "fails", "too slow")

Finding = tuple[str, str, str]  # severity, kind, "file.py:line"


@dataclass(frozen=True)
class Program:
    """A file of a repository. by: what runs it, one of RUNNERS. findings: those expected, of errors
    and portability. needs, below: the CuTe DSL's version, "" for any. packages: modules that it
    imports and this project does not. beside: repositories whose modules it imports, its own, too.
    seconds: what it took once, by the clock of two cores that others used as well.
    """

    repository: str
    file: str
    arguments: tuple[str, ...] = ()
    by: str = "script"
    expected: str = "clean"
    findings: frozenset[Finding] = frozenset()
    needs: str = ""
    below: str = ""
    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    note: str = ""
    seconds: int = 0

    @property
    def folder(self) -> str:
        return _folder(self.repository)

    def paths(self, folder: Path) -> list[Path]:
        """Where Python finds what it imports."""
        return [ROOT, *(folder / _folder(name) for name in self.beside)]


def _folder(repository: str) -> str:
    return repository.replace("/", "+")


@dataclass(frozen=True)
class Outcome:
    """What was said. said: the last line of the program's errors, where there is no report.
    launched: whether the program's own process has launched a kernel; True where nobody says.
    """

    verdict: str
    findings: frozenset[Finding] = frozenset()
    seconds: float = 0.0
    said: str = ""
    diagnoses: tuple[str, ...] = field(default=(), compare=False)
    launched: bool = field(default=True, compare=False)


def read(path: Path) -> tuple[dict[str, str], list[Program]]:
    """The commit of each repository, and the programs; ValueError names what is wrong there."""
    data = json.loads(path.read_text())
    programs = []
    for entry in data["programs"]:
        findings = frozenset(
            (f["severity"], f["kind"], f["line"]) for f in entry.get("findings", ())
        )
        lists = {name: tuple(entry.get(name, ())) for name in ("arguments", "packages", "beside")}
        program = Program(**{**entry, **lists, "findings": findings})
        for what, found, known in (
            ("expected", program.expected, VERDICTS),
            ("by", program.by, RUNNERS),
            ("repository", program.repository, data["commits"]),
        ):
            if found not in known:
                raise ValueError(
                    f"{path.name}: {program.file}: {what} is one of {', '.join(known)}; found"
                    f" {found!r}"
                )
        programs.append(program)
    return data["commits"], programs


def run(program: Program, folder: Path, python: str, seconds: float) -> Outcome:
    """Run a program over the software B200 with its checker. seconds: of CPU time."""
    start, limit = time.monotonic(), math.ceil(seconds)
    with tempfile.TemporaryDirectory() as work:
        report = Path(work, "report.json")
        process = subprocess.Popen(
            [python, *_command(program, folder / program.folder / program.file, report)],
            cwd=work,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, program.paths(folder))),
                "TMPDIR": work,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program.by == "eval" else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limits.of_cpu(limit),
        )
        said, errors = "", ""
        try:
            said, errors = process.communicate(timeout=WAIT * limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL, TERMINATED):
            return Outcome("too slow", seconds=time.monotonic() - start)
        if program.by == "eval":
            return judge_submission(said, errors, time.monotonic() - start)
        found = json.loads(report.read_text()) if report.is_file() else None
    return judge(found, errors, time.monotonic() - start)


def _command(program: Program, file: Path, report: Path) -> list[str]:
    """The arguments of Python that run a program."""
    if program.by == "eval":
        options = ["--submission", str(file), "--device", "emulator", "--json", "--all-findings"]
        return [str(ROOT / "eval.py"), "test", *program.arguments, *options]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if program.by == "pytest" else []
    command = [
        "-m",
        "b200",
        "run",
        "--no-again",
        "--may-launch-nothing",
        "--report",
        str(report),
        *tests,
    ]
    return [*command, str(file), *program.arguments]


def judge(report: dict[str, Any] | None, errors: str, seconds: float) -> Outcome:
    """The outcome of a run, by its report (`b200 run --report`) and what it said on stderr."""
    lines = [line for line in errors.splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    if report is None:
        return Outcome("fails", seconds=seconds, said=said)
    found = [
        f for f in report["findings"] if not f.get("stopped")
    ]  # a fault is a program that fails
    findings = frozenset(
        (f["severity"], f["kind"], Path(f["loc"]).name) for f in found if f["severity"] != "note"
    )
    diagnoses = tuple(f"{f['severity']} {f['loc']}: {f['diagnosis']}" for f in found)
    own = [line for line in lines if line.startswith("b200 run: ")]
    said = (own[0] if own else report["failure"] or said) if report["status"] else ""
    verdict = _verdict(findings, bool(report["status"]))
    if verdict == "fails" and any(words in said for words in REFUSALS):
        verdict = "refused"
    return Outcome(verdict, findings, seconds, said, diagnoses, report["launches"] > 0)


def _verdict(findings: frozenset[Finding], failed: bool) -> str:
    severities = {severity for severity, _, _ in findings}
    if "error" in severities:
        return "errors"
    return "fails" if failed else "portability" if severities else "clean"


def judge_submission(said: str, errors: str, seconds: float) -> Outcome:
    """The outcome of `eval.py test --json --all-findings`, by the records it prints."""
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    lines = [line for record in records for line in record["message"].splitlines()]
    told = [match for line in lines if (match := FINDING.match(line))]
    found = [(m["severity"] or "error", m["kind"], Path(m["loc"]).name) for m in told]
    findings = frozenset(f for f in found if f[0] != "note")
    failed = next((r["message"] for r in records if r["status"] != "pass"), "")
    if not records:
        failed = (errors.strip().splitlines() or ["no record"])[-1]
    diagnoses = tuple(match.string for match in told)
    verdict = _verdict(findings, bool(failed))
    return Outcome(verdict, findings, seconds, failed.partition("\n")[0], diagnoses)


def _missing(program: Program, folder: Path, dsl: str, packages: frozenset[str]) -> str:
    """Why a program cannot run here, "" if it can. dsl: the version of the CuTe DSL; packages:
    modules that are not there.
    """
    for repository in (program.repository, *program.beside):
        if not (folder / _folder(repository)).is_dir():
            return f"{repository} is not in {folder}"
    if not (folder / program.folder / program.file).is_file():
        return f"{program.repository} has no {program.file}"
    if _numbers(program.needs) > _numbers(dsl):
        return f"programs that need nvidia-cutlass-dsl {program.needs}, here is {dsl or 'none'}"
    if program.below and _numbers(dsl) >= _numbers(program.below):
        return f"programs for nvidia-cutlass-dsl below {program.below}, here is {dsl}"
    absent = sorted(packages.intersection(program.packages))
    return f"programs that import {', '.join(absent)}, which is not installed" if absent else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:3] if part.isdigit()]


def _dsl(python: str) -> str:
    """The version of the CuTe DSL that an interpreter has, "" if it has none."""
    ask = "import importlib.metadata as m; print(m.version('nvidia-cutlass-dsl'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _absent(python: str, modules: frozenset[str]) -> frozenset[str]:
    """The modules that an interpreter does not have."""
    ask = "import importlib.util as u, sys; print(*(m for m in sys.argv[1:] if not u.find_spec(m)))"
    done = subprocess.run([python, "-c", ask, *modules], capture_output=True, text=True)
    return frozenset(done.stdout.split())


def _commit(folder: Path) -> str:
    """The commit that a work tree says it is of (`git`, or a file COMMIT); "" if it does not."""
    note = folder / "COMMIT"
    if note.is_file():
        return note.read_text().strip()
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    return done.stdout.strip() if (folder / ".git").exists() else ""


def differences(program: Program, outcome: Outcome) -> Iterator[str]:
    """What is not as expected, a line each."""
    if outcome.verdict != program.expected:
        yield f"expected {program.expected}, found {outcome.verdict} {outcome.said}".rstrip()
    for name, ones in (
        ("found", outcome.findings - program.findings),
        ("missing", program.findings - outcome.findings),
    ):
        for severity, kind, line in sorted(ones):
            yield f"{name}: {kind} ({severity}) at {line}"


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab corpus", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="N")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    arguments = parser.parse_args(argv)
    if not arguments.folder.is_dir():
        parser.error(f"there is no folder {arguments.folder}")
    commits, programs = read(CORPUS)
    chosen = [program for program in programs if arguments.only in program.file]
    dsl = _dsl(arguments.python)
    asked = frozenset(module for program in chosen for module in program.packages)
    absent = _absent(arguments.python, asked)
    reasons = {program: _missing(program, arguments.folder, dsl, absent) for program in chosen}
    here = [program for program, reason in reasons.items() if not reason]
    for reason in sorted(set(reasons.values()) - {""}):
        print(f"not run: {reason}", file=sys.stderr)
    for repository in sorted({program.repository for program in here}):
        found = _commit(arguments.folder / repository.replace("/", "+"))
        if found and not found.startswith(commits[repository]):
            print(f"{repository} is at {found}, expected {commits[repository]}", file=sys.stderr)
    if not here:
        print(f"nothing to run in {arguments.folder}", file=sys.stderr)
        return 2
    right = idle = 0
    for program in here:
        outcome = run(program, arguments.folder, arguments.python, arguments.seconds)
        wrong = list(differences(program, outcome))
        right += not wrong
        idle += outcome.verdict == "clean" and not outcome.launched
        print(
            f"{'as expected' if not wrong else 'DIFFERS':11} {outcome.verdict:11}"
            f" {outcome.seconds:6.1f} s  {program.repository} {program.file}",
            flush=True,
        )
        for line in (*wrong, *(outcome.diagnoses if wrong else ())):
            print(f"    {line}")
    print(f"{right} of {len(here)} as expected")
    if idle:
        print(f"{idle} of the clean ones launched no kernel in their own process")
    return 0 if right == len(here) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
