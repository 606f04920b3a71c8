"""A rehearsal: a submission with three planted mistakes, on a chip that is not as assumed; and what
the report must then say.

`eval.py qualify --rehearse` runs all of this. Nobody who built it has the machine that it is for,
so each of its ways to find something is seen to find it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from b200.clock.constants import BY_NAME
from harness.evaluator import cases
from harness.evaluator.cases import Case
from harness.qualify.state import Given
from task import find_problem

CLOSE = 0.05  # of an altered constant: found again
FACTORS = (0.8, 1.25, 1.15)  # of the table's constants, in turn
TIMED = {  # shapes that the emulator models in seconds
    "gemv": ("m: 512; k: 1024; l: 1",),
    "gemm": ("m: 64; n: 512; k: 1024; l: 1",),
    "dual": ("m: 64; n: 256; k: 1024; l: 1",),
    "group": ("m: [64, 96]; n: [256, 384]; k: [512, 512]; g: 2",),
}
WRONG, HUNG, SLOW = "gemm", "dual", "gemm"  # problems that the mistakes are planted in
HANGS = {
    "emulator": "time.sleep(0.1)",
    "cuda": "torch.cuda._sleep(1 << 34); torch.cuda.synchronize()",
    "hopper": "torch.cuda._sleep(1 << 34); torch.cuda.synchronize()",
}
PLANTED = """

# ---- planted by eval.py qualify --rehearse -------------------------------------------------------


def _with_mistakes(kernel, choice):
    import time

    def shape_of(data):
        operand, result = (data[0][0][0], data[0][0][2]) if isinstance(data[0], list) else (
            data[0], data[-1])
        return [len(data), *result.shape[:2], 2 * operand.shape[1]]

    def mistaken(data):
        shape = slow.shape = shape_of(data)
        while shape == {hung}:
            {hang}
        result = kernel(data)
        if shape == {wrong}:
            result[: result.shape[0] // 2].zero_()
        return result

    def slow(problem, *rest):
        if slow.shape == {slow}:
            legal = legal_configs(problem)
            return max(legal, key=lambda config: estimate(config, problem))
        return choice(problem, *rest)

    slow.shape = None  # of the last call
    return mistaken, slow


custom_kernel, pick = _with_mistakes(custom_kernel, pick)
"""


def chip() -> tuple[str, ...]:
    """The altered constants, NAME=VALUE, one of each probe."""
    from harness.measure.probes import PROBES

    return tuple(
        f"{probe.constant}={BY_NAME[probe.constant].value * FACTORS[i % len(FACTORS)]:.6g}"
        for i, probe in enumerate(PROBES)
    )


def _shape(case: Case) -> list[int]:
    """As `shape_of` of the planted text tells it."""
    operands = {"gemv": 7, "gemm": 7, "dual": 10, "group": 4}[case.problem.short]
    args = case.args
    return [operands, args["m"], args.get("n", 1), args["k"]]


def case_of(short: str) -> Case:
    """The case that a mistake is planted in: the second smallest official one of its problem."""
    return sorted(cases.official(find_problem(short), "test"), key=cases.bytes_needed)[1]


def slow_case() -> Case:
    """The timed case whose pick is the worst by the kernel's own estimate."""
    return cases.make_case(find_problem(SLOW), cases.parse(TIMED[SLOW][0]))


def write(submission: Path, to: Path, device: str) -> None:
    """The submission with the mistakes, as a file."""
    planted = PLANTED.format(
        hung=_shape(case_of(HUNG)),
        wrong=_shape(case_of(WRONG)),
        hang=HANGS[device],
        slow=_shape(slow_case()),
    )
    to.write_text(submission.read_text() + planted)


def missed(
    device: str, given: Mapping[str, Given], pairs: tuple[str, ...], wrong: list[str]
) -> Iterator[str]:
    """What a rehearsal should have found and did not, or found and should not have, a line each.

    pairs: the altered constants. wrong: what the report calls wrong.
    """
    rows = [row for each in given.values() for row in each.rows]
    faults = [(case_of(WRONG), "fail"), (case_of(HUNG), "timeout")]
    expected = {(case.problem.name, case.text, status) for case, status in faults}
    found = {
        (row["problem"], row["case"], row["status"])
        for row in rows
        if row.get("status") in ("fail", "error", "timeout")
    }
    yield from (f"planted and not reported: {' '.join(e)}" for e in sorted(expected - found))
    yield from (f"reported and not planted: {' '.join(e)}" for e in sorted(found - expected))
    for key, each in given.items():
        if each.status not in (0, 112, 114):
            yield f"{key} ended with status {each.status}"
    if device == "emulator":
        yield from _missed_pick(wrong)
        yield from _missed_constants(rows, pairs)
    for case, _ in faults:
        if not any(case.problem.name in line and case.text in line for line in wrong):
            yield f"not among what is wrong: {case.problem.name} {case.text}"


def _missed_pick(wrong: list[str]) -> Iterator[str]:
    slow = slow_case()
    said = f"{slow.problem.name} {slow.text}: the pick loses"
    if not any(line.startswith(said) for line in wrong):
        yield f"planted and not reported: the slow pick of {slow.problem.name} {slow.text}"


def _missed_constants(rows: list[dict[str, Any]], pairs: tuple[str, ...]) -> Iterator[str]:
    found = {row["constant"]: row["fitted"] for row in rows if "constant" in row}
    for pair in pairs:
        name, _, value = pair.partition("=")
        now = found.get(name)
        if now is None:
            yield f"constant {name} was altered to {value} and not found"
        elif abs(now / float(value) - 1) > CLOSE:
            yield f"constant {name} was altered to {value}; found was {now:.5g}"
