"""python -m lab strangers FOLDER [--only TEXT] [--seconds N] [--out FILE]

Kernels of other projects beside the times that were published of them
(lab/strangers/published.csv). FOLDER: the work tree of mlc-ai/TIRx-kernels at 51a6c01, whose
benchmark knows each kernel's shapes and arguments. The kernels are those of the packages that this
interpreter finds, installed or on PYTHONPATH: flashinfer-python 0.6.18 and what it imports, with
nvidia-cutlass-dsl 4.6.0.dev0, and apache-tvm 0.27.0.post1 for the project's own kernels. Nothing is
fetched. Each row runs unmodified, in a process of its own under `b200 exec`.

--only: rows whose name or kind has the text. --seconds: of CPU time for a row (default 300), after
which it is left out. --out: a file of JSON lines. Rows that it has, of the same clock, are not run
again, but for those that could not be run; these are there with the reason.
Exit status: 0, or 1 where no row could be run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness import digest
from lab import limits
from lab.strangers import rows
from lab.strangers.rows import Row

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
TOO_LONG = "more CPU time than it was given"
STOPPED = {status for s in (signal.SIGXCPU, signal.SIGKILL) for status in (-s, 128 + s)}
LONGEST_REASON = 160  # characters

Record = dict[str, Any]


def run(row: Row, folder: Path, seconds: int) -> Record:
    """The row with its modelled time, or with `left_out`, the reason why it has none."""
    one = ("-m", "lab.strangers.one", row.kernel, row.config, row.implementation)
    command = [sys.executable, "-m", "b200", "exec", "--no-check", "--", sys.executable, *one]
    paths = [str(ROOT), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, env=environment, preexec_fn=limits.of_cpu(seconds), capture_output=True, text=True
    )
    found = [line for line in done.stdout.splitlines() if line.startswith('{"modelled_us"')]
    outcome = json.loads(found[-1]) if found else {"left_out": _reason(done)}
    said = {**asdict(row), "kind": row.kind, "steady": row.steady}
    return {**said, **outcome, "made_by": digest.made_by()}


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last error that the process tells, in a line."""
    if done.returncode in STOPPED:
        return TOO_LONG
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "not found" in line]
    return (errors or lines or [f"status {done.returncode}"])[-1][:LONGEST_REASON]


def line(record: Record) -> str:
    """A row as it is printed."""
    name = f"{record['kind']}: {record['kernel']} {record['config']} {record['implementation']}"
    if "left_out" in record:
        return f"{name}: left out: {record['left_out']}"
    modelled, published = record["modelled_us"], record["published_us"]
    return f"{name}: {modelled:.2f} us, published {published:.2f} ({modelled / published - 1:+.0%})"


def kept(path: Path | None) -> dict[str, Record]:
    """Records of a file of before that are of today's clock, by the row's name."""
    if path is None or not path.exists():
        return {}
    found = [json.loads(text) for text in path.read_text().splitlines()]
    today = digest.made_by()
    return {_name(r): r for r in found if r["made_by"] == today}


def _name(record: Record) -> str:
    return " ".join(record[n] for n in ("kernel", "config", "implementation"))


def write(path: Path, records: Iterable[Record]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    parser = Parser("python -m lab strangers", __doc__)
    parser.add_argument("folder", type=Path, help="the work tree of TIRx-kernels")
    parser.add_argument("--only", default="", help="rows whose name or kind has this text")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of CPU time for a row")
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    options = parser.parse_args(argv)
    if not (options.folder / "tirx_kernels").is_dir():
        parser.error(f"FOLDER is a work tree of TIRx-kernels; found {options.folder}")
    before = kept(options.out)
    found: list[Record] = []
    for row in rows.read():
        record = before.pop(row.name, None)
        is_open = record is None or "left_out" in record
        if is_open and options.only in f"{row.kind} {row.name}":
            record = run(row, options.folder, options.seconds)
            print(line(record), flush=True)
        if record is not None:
            found.append(record)
            if options.out:
                write(options.out, [*found, *before.values()])
    return 0 if any("modelled_us" in record for record in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
