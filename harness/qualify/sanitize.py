"""compute-sanitizer over one small call of each problem: JSON lines, one a tool.

python -m harness.qualify.sanitize --device cuda --submission submission.py --tools memcheck
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from b200.command_line import Parser
from task import PROBLEMS

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 99  # its exit status where it found something
PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)
_ERRORS = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", re.MULTILINE)
_FIRST = re.compile(r"^========= (?!COMPUTE-SANITIZER|\w+ SUMMARY)(.*\S.*)$", re.MULTILINE)


def program() -> str | None:
    """The path of compute-sanitizer, if it is installed."""
    found = shutil.which("compute-sanitizer")
    return found or next((place for place in PLACES if Path(place).exists()), None)


def verdict(tool: str, status: int | None, said: str) -> dict[str, str]:
    """What a run says: status and message. status: exit status, None if it was stopped."""
    if status is None:
        return {"status": "timeout", "message": f"{tool} did not end"}
    counts = _ERRORS.findall(said)
    if not counts:
        last = said.strip().splitlines()[-1:] or ["no word"]
        return {"status": "error", "message": f"{tool} gave no summary: {last[0]}"}
    if int(counts[-1]):
        first = _FIRST.search(said)
        message = f"{tool}: {counts[-1]} errors, the first: {first.group(1) if first else '?'}"
        return {"status": "fail", "message": message}
    if status:
        return {"status": "fail", "message": f"{tool}: 0 errors, but ended with status {status}"}
    return {"status": "pass", "message": f"{tool}: 0 errors"}


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.sanitize", __doc__)
    parser.add_argument("--device", choices=("cuda", "hopper"), required=True)
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--problems", nargs="+", default=[p.short for p in PROBLEMS.values()])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a tool")
    options = parser.parse_args(argv)
    sanitizer, wrong = program(), 0
    for tool in options.tools:
        row: dict[str, str] = {
            "problem": " ".join(options.problems),
            "case": tool,
            "mode": "sanitize",
        }
        if sanitizer is None:
            row |= {"status": "skipped", "message": "compute-sanitizer is not installed"}
        else:
            # Libraries ask the driver for functions that it may not have: no errors of a kernel.
            command = [sanitizer, "--tool", tool, "--report-api-errors", "no"]
            command += ["--error-exitcode", str(FOUND)]
            command += ["--print-limit", "5", sys.executable, "-m", "harness.qualify.repeats"]
            command += ["--device", options.device, "--submission", str(options.submission)]
            command += ["--times", "1", "--problems", *options.problems]
            try:
                done = subprocess.run(command, capture_output=True, text=True,
                                      timeout=options.timeout)  # fmt: skip
                row |= verdict(tool, done.returncode, done.stdout + done.stderr)
            except subprocess.TimeoutExpired:
                row |= verdict(tool, None, "")
        wrong += row["status"] in ("fail", "error", "timeout")
        print(json.dumps(row), flush=True)
    return 112 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
