"""Every function of the headers, run in the emulator and judged: a row each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from b200.chip.gpu import Gpu
from b200.errors import EmulatorError
from lab.headers import build, judge, oracles
from lab.headers.declarations import HEADERS, Function, read
from lab.headers.groups import PROGRAMS, Program
from lab.headers.groups import program as groups
from lab.headers.programs import Call, call_of, why_untried


@dataclass(frozen=True)
class Row:
    """A signature, or a function that programs by hand call. verdict: "right" (each word), "near"
    (within a documented bound), "refused" (by the emulator, by name), "wrong", "not tried". steps:
    the largest difference from the correctly rounded word; bound: documented, in the same.
    """

    page: str
    name: str
    verdict: str
    source: str = ""
    steps: float = 0
    bound: float = 0
    said: str = ""


def functions(include: Path, only: str = "") -> list[Function]:
    """Of all headers; only: those whose signature matches."""
    return [f for f in read(include) if re.search(only, f.signature)]


def _page(function: Function) -> str:
    return HEADERS[function.header]


def _judged(call: Call, given: judge.Words, found: judge.Words, expected: judge.Expected) -> Row:
    told = judge.judge(call, given, found, expected)
    near = told.bound or told.absolute
    verdict = "wrong" if told.wrong else "near" if near else "right"
    steps = told.steps if math.isfinite(told.steps) else 0
    page, name = _page(call.function), call.name
    return Row(page, name, verdict, expected.source, steps, told.bound, told.wrong)


def _expected(call: Call, given: judge.Words, host, name: str) -> judge.Expected | None:
    found = oracles.expected(call, given)
    return found if found is not None or host is None else host(call, name, given)


def declared(nvcc: Path, folder: Path, chosen: Sequence[Function]) -> list[Row]:
    """A row for each declaration. folder: for what is compiled. Raises ChildProcessError."""

    def left(function: Function, said: str, verdict: str = "not tried") -> Row:
        return Row(_page(function), function.signature, verdict, said=said)

    rows = [left(f, why) for f in chosen if (why := why_untried(f))]
    calls = {f"k{n}": call_of(f) for n, f in enumerate(chosen) if not why_untried(f)}
    if not calls:
        return rows
    ptx, refused = build.device(nvcc, folder, calls)
    rows += [left(calls[name].function, f"nvcc: {said}") for name, said in refused.items()]
    tried = {name: call for name, call in calls.items() if name not in refused}
    on_host = {name: call for name, call in tried.items() if call.function.on_host}
    library, absent = build.host(nvcc, folder, on_host)
    host, gpu = judge.on_host(library), Gpu()
    for name, call in tried.items():
        given = judge.arrays(call)
        found = judge.run(gpu, ptx, name, given)
        if isinstance(found, str):
            rows.append(left(call.function, found, "refused"))
            continue
        has_host = name in on_host and name not in absent
        expected = _expected(call, given, host if has_host else None, name)
        judged = expected and _judged(call, given, found, expected)
        rows.append(judged or left(call.function, "no oracle"))
    return rows


def merged(tried: Sequence[Row], by_hand: Sequence[Row]) -> list[Row]:
    """Both, less the declarations that could not be tried and that a program by hand calls. A
    function that several programs call has the row of the worst.
    """
    covered: dict[tuple[str, str], Row] = {}
    for row in by_hand:
        before = covered.get((row.page, row.name))
        covered[row.page, row.name] = row if before is None or before.verdict == "right" else before

    def left(row: Row) -> bool:
        return row.verdict != "not tried" or (row.page, row.name.split("(")[0]) not in covered

    return [*filter(left, tried), *covered.values()]


def by_hand(nvcc: Path, folder: Path, programs: Iterable[Program] = PROGRAMS) -> list[Row]:
    """A row for each function that the programs of groups/ call. Raises ChildProcessError."""
    rows: list[Row] = []
    for of_cub in (False, True):  # cub costs most of the compile
        chosen = [p for p in programs if p.page.startswith("cub") == of_cub]
        if chosen:
            rows += _by_hand(nvcc, folder, chosen, of_cub)
    return rows


def _by_hand(nvcc: Path, folder: Path, programs: Sequence[Program], of_cub: bool) -> list[Row]:
    source, ptx = folder / "groups.cu", folder / "groups.ptx"
    head = groups.HEAD + (groups.CUB if of_cub else "")
    source.write_text(head + "".join(program.kernel() for program in programs))
    done = build.compiled(nvcc, source, "-std=c++17", *build.TO_PTX, "-o", str(ptx))
    if done.returncode:
        raise ChildProcessError(f"nvcc: {(done.stderr or done.stdout).strip()[:2000]}")
    gpu, text = Gpu(), ptx.read_text()
    rows = []
    for program in programs:
        verdict, said = _outcome(gpu, text, program)
        rows += [Row(program.page, f, verdict, "by hand", said=said) for f in program.functions]
    return rows


def _outcome(gpu: Gpu, ptx: str, program: Program) -> tuple[str, str]:
    given, out = groups.given(), np.zeros(groups.OUTPUTS, np.uint32)
    expected = np.hstack(program.expected(given)).astype(np.uint32)
    shape = ((program.grid, 1, 1), (groups.THREADS, 1, 1), (program.cluster, 1, 1))
    try:
        gpu.launch(ptx, program.name, *shape, args=[given, out], cooperative=program.cooperative)
    except EmulatorError as error:
        return "refused", str(error).splitlines()[0]
    wrong = np.flatnonzero(out[: len(expected)] != expected)
    if not len(wrong):
        return "right", ""
    at = int(wrong[0])
    return "wrong", f"{program.name}: word {at} is {out[at]}, expected {expected[at]}"
