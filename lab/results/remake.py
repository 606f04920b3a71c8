"""Make the files of docs/results again that are of other sources than today's.

    python -m lab remake                   those that take minutes and need nothing else
    python -m lab remake --data FOLDER     the calibrations, too: FOLDER has the published tables
    python -m lab remake FILE ...          these alone, also where they are not stale
    python -m lab remake --sample          three small benchmarks, held against docs/results

Each is made anew by its own command, whole. What is said of it is how many of its rows are equal to
the last bit. Then every generated table is rendered. Files that cannot be made here are listed with
what they need. --sample writes nothing, and ends with 1 where a time differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from b200.command_line import Parser, folder
from lab.results import stale
from lab.results.files import DATA, FILES, OUT, RESULTS, ROOT, File

SAMPLE = (  # problem, case: small, each by another part of the kernel
    ("nvfp4_gemm", "m: 128; n: 7168; k: 2048; l: 1; seed: 1111"),
    ("nvfp4_dual_gemm", "m: 256; n: 3072; k: 4096; l: 1; seed: 1111"),
    ("nvfp4_gemv", "m: 7168; k: 2048; l: 4; seed: 1111"),
)
NOT_A_RESULT = ("seconds", "made_by")  # keys of a row that a rerun changes


class RemakeError(Exception):
    """A command that failed, or a name that is no file's; str() is one line."""


def results_of(rows: Iterable[Any]) -> list[Any]:
    """Rows without what a rerun changes."""
    return [
        {key: value for key, value in row.items() if key not in NOT_A_RESULT}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


def rows_of(text: str, name: str) -> list[Any]:
    """The rows of a file: lines, or the items of its lists."""
    if name.endswith(".jsonl"):
        return results_of(json.loads(line) for line in text.splitlines())
    whole = {k: v for k, v in json.loads(text).items() if k not in NOT_A_RESULT}
    found = []
    for key, value in whole.items():
        found += value if isinstance(value, list) else [{key: value}]
    return results_of(found)


def printed(text: str) -> str:
    """What a command printed, a JSON object a line, without the time that it took."""
    lines = map(json.loads, text.splitlines())
    kept = ({key: value for key, value in row.items() if key != "seconds"} for row in lines)
    return "".join(json.dumps(row) + "\n" for row in kept)


def run(words: Sequence[str]) -> str:
    """Run a command of this checkout and return what it printed. Raises RemakeError."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RemakeError(f"python {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def made(file: File, data: Path | None) -> str:
    """The contents of a file, made anew. Raises RemakeError."""
    with tempfile.TemporaryDirectory() as there:
        out = Path(there) / "out.json"
        stands_for = {OUT: str(out), DATA: str(data)}
        said = run([stands_for.get(word, word) for word in file.command])
        return out.read_text() if out.exists() else printed(said)


def remake(name: str, data: Path | None) -> str:
    """Make a file of docs/results again. Returns how much of it is as it was."""
    path = ROOT / RESULTS / name
    before = rows_of(path.read_text(), name) if path.exists() else []
    text = made(FILES[name], data)
    after = rows_of(text, name)
    path.write_text(text)
    equal = sum(old == new for old, new in zip(before, after))
    if equal == len(before) == len(after):
        return f"{name}: equal, all {equal} rows"
    keys = dict.fromkeys(key for pair in zip(before, after) for key in different(*pair))
    said = f"; in {', '.join(keys)} they differ" if keys else ""
    return f"{name}: {equal} of {len(after)} rows are equal to those before{said}"


def different(old: Any, new: Any) -> list[str]:
    """The keys in which two rows differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return []
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def differences(found: Iterable[dict], kept: Iterable[dict]) -> list[str]:
    """A line for each record that is not as the one kept of its case."""
    of_case = {(row["problem"], row["case"]): row for row in kept}
    lines = []
    for row in found:
        where = row["problem"], row["case"]
        old, (new,) = of_case[where], results_of([row])
        if keys := different(results_of([old])[0], new):
            us = f"{old['time_us']:.3f} us in {RESULTS}, {new['time_us']:.3f} us now"
            lines.append(f"{' '.join(where)}: {us}; {', '.join(keys)} differ")
    return lines


def sample() -> int:
    """Rerun SAMPLE. The exit status."""
    kept = list(map(json.loads, (ROOT / RESULTS / "benchmark.jsonl").read_text().splitlines()))
    found = []
    for problem, case in SAMPLE:
        command = (*FILES["benchmark.jsonl"].command, problem, "--case", case)
        found += map(json.loads, run(command).splitlines())
    lines = differences(found, kept)
    dsl = [rows[0]["made_by"]["dsl"] for rows in (kept, found)]
    if lines and dsl[0] != dsl[1]:
        lines.append(f"the figures are of DSL {dsl[0]}, this is {dsl[1]}")
    same = f"{len(found)} benchmarks are equal to those of {RESULTS}, to the last bit"
    print(*(lines or [same]), sep="\n")
    return 1 if lines else 0


def chosen(given: Sequence[str], data: Path | None) -> list[str]:
    """The files to make. Raises RemakeError."""

    def can(file: File) -> bool:
        return file.here or (DATA in file.command and data is not None)

    for name in given:
        if name not in FILES:
            raise RemakeError(f"{name} is no file of {RESULTS}")
        if not (can(FILES[name]) or FILES[name].slow):
            raise RemakeError(f"{name} cannot be made here: it needs {FILES[name].needs}")
    return list(given) or [n for n, file in FILES.items() if can(file) and stale.stale(n)]


def left(done: Sequence[str]) -> list[str]:
    """The stale files that were not made, each with what it needs."""
    found = {n: stale.stale(n) for n in FILES if n not in done and FILES[n].depends}
    lines = []
    for name, parts in found.items():
        needed = f"it needs {FILES[name].needs}" if FILES[name].needs else f"name it: {name}"
        lines += [f"{name}: stale: {', '.join(parts)}; {needed}"] if parts else []
    return lines


def main(argv: Sequence[str]) -> int:
    from lab.tables import figures

    parser = Parser(prog="python -m lab remake", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"names in {RESULTS}")
    parser.add_argument("--data", type=folder, help="where the published tables are")
    parser.add_argument("--sample", action="store_true", help="compare three benchmarks only")
    options = parser.parse_args(argv)
    try:
        if options.sample:
            return sample()
        names = chosen(options.files, options.data)
        for name in names:
            print(remake(name, options.data), flush=True)
    except RemakeError as error:
        print(f"python -m lab remake: {error}", file=sys.stderr)
        return 2
    print(*left(names), sep="\n")
    return figures.main(["--write"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
