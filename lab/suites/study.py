"""python -m lab suites FOLDER [TEST...] --out DIR [--sample whole|function|N] [--seed N]
                     [--limit S] [--processes N] [--minutes M] [--title TEXT] [--table]
                     [--record FILE]

Tests of another project, run by pytest as they stand under the software B200. FOLDER: where pytest
is started, a checkout of the project; nothing is fetched. TEST: files or folders below it (default
all that pytest finds). What is run, and how each test ended, lies in DIR; a call with a DIR that
has rows goes on where the one before has stopped.

--sample: all tests, one set of parameters of each test function (the default), N sets of each
(function:N), or N of all, in an order that --seed decides. --limit: CPU seconds of a test (default
30); a process that does not stop by then is killed. --processes: how many run tests (default 1).
--minutes: after which no test is begun; there is no limit without it. --table: run nothing, tell
what DIR has. --record: put the result into a file of JSON (docs/results/suites.json), under
--title.
Exit status: 0; 1 where a test is wrong, raw or stopped by a finding; 2 where there is nothing to
run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from b200 import records
from b200.command_line import USAGE, Parser
from lab.suites import own, rows
from lab.suites.draw import FUNCTION, checked, draw
from lab.suites.rows import Row
from lab.suites.share import VARIABLE, Share, begun, deal, read_list

ROOT = Path(__file__).resolve().parents[2]
MADE_BY = "hand: python -m lab suites, at the days and on the machines that docs/suites.md names"
Record = dict[str, Any]
NEVER = 1e12  # of time.time()
CLOCK_FOR_CPU = 6  # seconds of the clock in which a process uses one of the CPU, at the worst
START = 300  # seconds of the clock that a process may take until its first test
QUIET = ("-p", "no:cacheprovider", "-q", "--no-header")
BEHIND = 25  # seconds that tests under way have at the end of --minutes


@dataclass(frozen=True)
class Suite:
    """What is run. tests: paths below the folder. out: where the rows lie."""

    folder: Path
    tests: tuple[str, ...]
    out: Path

    def start(self, share: Share, tests: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process of pytest that does as `share` says."""
        # This checkout's plugin by its module; an installed package's, by its entry point, is off.
        plugins = ("-p", "b200.pytest_plugin", "-p", "no:b200", "-p", "lab.suites.worker")
        command = (sys.executable, "-m", "pytest", *plugins, "--b200", *QUIET, *tests)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        told = {"PYTHONPATH": os.pathsep.join(paths), VARIABLE: share.told()}
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {**one_thread, **os.environ, **told}
        with (self.out / f"said.{share.worker}.txt").open("ab") as said:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def collected(self) -> list[str]:
        """All tests that pytest finds, once for a DIR."""
        kept = self.out / "tests.json"
        if not kept.exists():
            self.start(Share(self.out, 0, 0, NEVER, True), self.tests).wait()
        return read_list(kept) if kept.exists() else []

    def unread(self) -> list[dict[str, str]]:
        """Modules that could not be imported, with the reason."""
        kept = self.out / "unread.jsonl"
        return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []

    def rows(self) -> dict[str, Row]:
        found = rows.read(sorted(self.out.glob("rows.*.jsonl")))
        return {test: own.judged(row) for test, row in found.items()}


@dataclass
class Process:
    """A worker that runs. test, since: what it runs, and from when on."""

    share: Share
    popen: subprocess.Popen[bytes]
    test: str = ""
    since: float = field(default_factory=time.time)

    def longest(self) -> float:
        return self.share.limit * CLOCK_FOR_CPU if self.test else START

    def kill(self) -> None:
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def look(self) -> None:
        """Note which test it runs."""
        if (test := begun(self.share.rows)) != self.test:
            self.test, self.since = test, time.time()


def run(suite: Suite, todo: list[str], limit: float, processes: int, until: float) -> None:
    """Run tests in several processes; one that ends before the list does is started again."""
    deal(suite.out, todo)
    files = sorted({test.partition("::")[0] for test in todo})

    def start(worker: int) -> Process:
        share = Share(suite.out, worker, limit, until, False)
        share.write("{}")  # nothing is begun yet
        return Process(share, suite.start(share, files))

    running = [start(n) for n in range(min(processes, len(todo)))]
    try:
        while running:
            time.sleep(0.5)
            running = [
                process if process.popen.poll() is None else start(process.share.worker)
                for process in running
                if not _is_over(process)
            ]
    finally:
        for process in running:
            process.kill()


def _is_over(process: Process) -> bool:
    """Whether a worker has no more to do. One that hangs or has died leaves a row."""
    process.look()
    status, now = process.popen.poll(), time.time()
    if status is None and now > process.share.until + BEHIND:
        process.kill()
        return True
    if status is None and now - process.since > process.longest():
        process.kill()
        said = f"was killed after {now - process.since:.0f} s"
        process.share.write(Row(process.test, rows.TIME, said=said).line())
    elif status is not None and process.test:
        said = f"the process died, status {status}"
        process.share.write(Row(process.test, rows.RAW, said=said).line())
    return status is not None and not process.test


def record(title: str, suite: Suite, sample: str) -> Record:
    """The result of a suite as it is kept: counts, and each kind that did not pass."""
    found = list(suite.rows().values())
    passed, of = rows.share(found)
    return {
        "suite": title,
        "tests": len(suite.collected()),
        "sample": sample,
        "outcomes": dict(rows.summary(found)),
        "passed": passed,
        "launched_in_time": of,
        "hours": round(sum(row.seconds for row in found) / 3600, 2),
        "kinds": [list(kind) for kind in rows.kinds(found)],
        "unread": [list(module.values()) for module in suite.unread()],
    }


def keep(path: Path, new: Record) -> None:
    """Put a record into a file, in the place of the one of the same title."""
    found = json.loads(path.read_text())["suites"] if path.exists() else []
    others = [entry for entry in found if entry["suite"] != new["suite"]]
    whole = {"made_by": {"by": MADE_BY}, "suites": [*others, new]}
    records.write(path, whole)


def told(title: str, suite: Suite, sample: str) -> Iterator[str]:
    """The result: how many tests ended how, and each kind that did not pass."""
    found = list(suite.rows().values())
    passed, of = rows.share(found)
    yield f"{title}: {len(suite.collected())} tests, {sample}: {len(found)} run"
    yield from (f"  {rows.OUTCOMES[name]}: {many}" for name, many in rows.summary(found).items())
    if of:
        yield f"  passed of those that launch and end in time: {passed} of {of} ({passed / of:.1%})"
    yield from (f"  not imported: {x['module']}: {x['said']}" for x in suite.unread())
    for outcome, said, many, one in rows.kinds(found):
        yield f"{many:5} {outcome}: {said}\n        {one}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("python -m lab suites", __doc__)
    parser.add_argument("folder", type=Path, help="where pytest is started: a checkout")
    parser.add_argument("tests", nargs="*", help="files or folders below it (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the rows")
    parser.add_argument("--sample", default=FUNCTION, help="whole, function (default), or a number")
    parser.add_argument("--seed", type=int, default=1, help="of the order that a number decides")
    parser.add_argument("--limit", type=float, default=30, help="CPU seconds of a test")
    parser.add_argument("--processes", type=int, default=1, help="how many run tests")
    parser.add_argument("--minutes", type=float, help="after which no test is begun")
    parser.add_argument("--title", default="", help="the suite's name in the table")
    parser.add_argument("--table", action="store_true", help="run nothing, tell what --out has")
    parser.add_argument("--record", type=Path, help="put the suite into this file of results")
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        parser.error(f"FOLDER: expected a folder, got {options.folder}")
    try:
        sample = checked(options.sample)
    except ValueError as error:
        parser.error(str(error))
    until = time.time() + 60 * options.minutes if options.minutes else NEVER
    options.out.mkdir(parents=True, exist_ok=True)
    suite = Suite(options.folder, tuple(options.tests), options.out.absolute())
    tests = suite.collected()
    if not tests:
        print(f"python -m lab suites: no tests are found ({suite.out}/said.0.txt)", file=sys.stderr)
        return USAGE
    done = suite.rows()
    todo = [test for test in draw(tests, sample, options.seed) if test not in done]
    if todo and not options.table:
        run(suite, todo, options.limit, options.processes, until)
    title = options.title or options.folder.name
    if options.record:
        keep(options.record, record(title, suite, sample))
    print(*told(title, suite, sample), sep="\n")
    is_bad = any(row.outcome in (rows.WRONG, rows.RAW, rows.FAULT) for row in suite.rows().values())
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
