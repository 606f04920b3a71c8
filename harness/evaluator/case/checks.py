"""Is a kernel right? Two calls on different inputs, and the recheck of a leaderboard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

from harness.evaluator.case.timing import SEED_STEP_REPEATS, WrongResult, plan

Kernel = Callable[[Any], Any]
Generate = Callable[[int], Any]

LEFT = 0.005  # of the elements, from which what c held before is no coincidence
SECOND_CALL = "second call, on other inputs at other addresses (seed {seed}): "
IN_ONE_PROCESS = (
    "call {number} in one process, on {name}, after calls for other shapes (as on a board; each"
    " alone is right: does what is kept between calls, as compiled kernels, know all sizes?): "
)
SHARED_RESULT = (
    "the second call changed what the first had returned: calls share an output, and the"
    " leaderboards read the outputs of up to 50 calls only after the last"
)
_NAMES = {
    7: ("a", "b", "sfa", "sfb", "sfa_permuted", "sfb_permuted"),
    10: (
        *("a", "b1", "b2", "sfa", "sfb1", "sfb2"),
        *("sfa_permuted", "sfb1_permuted", "sfb2_permuted"),
    ),
}  # of the inputs, by the length of the data


def call_and_check(kernel: Kernel, data: Any, wait: Callable[[], None]) -> tuple[Any, Any, str]:
    """(what the call was given, what it returned, a note on that, "" for none): a copy of `data`, a
    right result. Raises WrongResult.
    """
    from reference import check_implementation
    from utils import clone_data

    given = clone_data(data)
    wait()
    output = kernel(given)
    wait()
    right, message = check_implementation(data, output)
    if not right:
        raise WrongResult(
            "\n".join(filter(None, [message or "wrong result", _unwritten(data, output)]))
        )
    return given, output, message


def _unwritten(data: Any, output: Any) -> str:
    """A note on elements of a wrong output that hold what c held before the call, "" if none do."""
    from utils import bits_of, outputs_of, tensors_of

    pairs = [
        (c, got)
        for c, got in zip(outputs_of(data), tensors_of(output))
        if (got.shape, got.dtype, got.device) == (c.shape, c.dtype, c.device)
    ]
    left = sum(int((bits_of(c) == bits_of(got)).sum()) for c, got in pairs)
    count = sum(c.numel() for c, _ in pairs)
    if left < LEFT * count or not left:
        return ""
    return (
        f"{left:,} of {count:,} elements hold what c held before the call: they were never written"
        " (eval.py diff says where)"
    )


def check_twice(kernel: Kernel, generate: Generate, seed: int, wait: Callable[[], None]) -> str:
    """Two calls, the second on other inputs while the first ones are still there, so at other
    addresses. Raises WrongResult, and what the kernel raises.

    wait: for the device. Returns a note that names the inputs that the kernel changed, "" if none.
    """
    from utils import clone_data

    data = generate(seed)
    given, output, note = call_and_check(kernel, data, wait)
    note = "\n".join(filter(None, [note, _changed(data, given)]))
    kept = clone_data(output)
    other = (seed + SEED_STEP_REPEATS) % 2**63
    with _told(SECOND_CALL.format(seed=other)):
        call_and_check(kernel, generate(other), wait)
    if not _same_bits(output, kept):
        raise WrongResult(SHARED_RESULT)
    return note


def recheck(problem: str, kernel: Kernel, generate: Generate, seed: int) -> str:
    """The checks of a leaderboard: a call on a copy of the inputs, then one as it is timed, on the
    inputs themselves (gemv: on new ones), held against a copy made before. Returns a note on the
    results and on inputs that the kernel changed, "" for none. Raises WrongResult, also where the
    two calls share an output.

    One of the up to 50 inputs and one of the up to 1000 repeats: where nothing is measured a call
    takes seconds to minutes.
    """
    from reference import check_implementation
    from utils import clone_data

    data = generate(seed)
    given, output, note = call_and_check(kernel, data, lambda: None)
    note = "\n".join(filter(None, [note, _changed(data, given)]))
    if plan(problem, "leaderboard").fresh_inputs:
        data = generate(seed + SEED_STEP_REPEATS)
    copies = clone_data(data)
    again = kernel(data)
    right, message = check_implementation(copies, again)
    if not right:
        raise WrongResult(message)
    if _memory(output) & _memory(again):
        raise WrongResult(SHARED_RESULT)
    return note


def _memory(output: Any) -> set[int]:
    """Where the tensors of a result lie."""
    from utils import tensors_of

    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(output)}


def in_one_process(kernel: Kernel, data: Iterable[tuple[str, Any]], wait: Callable) -> None:
    """A call for each shape, as a board makes them in one process, and for the first one again.
    data: the name of each shape, and its inputs. Raises WrongResult, and what the kernel raises.
    """
    for number, (name, given) in enumerate(data):
        with _told(IN_ONE_PROCESS.format(name=name, number=number + 1)):
            call_and_check(kernel, given, wait)


@contextlib.contextmanager
def _told(stage: str) -> Generator[None]:
    """What goes wrong here says in which call."""
    try:
        yield
    except WrongResult as wrong:
        raise WrongResult(stage + str(wrong)) from None
    except Exception as error:
        error.stage = stage  # type: ignore[attr-defined]  # for who reports it
        raise


def _changed(data: Any, given: Any) -> str:
    pairs = zip(_named_inputs(data), _named_inputs(given))
    changed = [name for (name, before), (_, after) in pairs if not _same_bits(before, after)]
    if not changed:
        return ""
    return (
        f"note: custom_kernel changed its inputs ({', '.join(changed)}), and the leaderboards time"
        " it on the same inputs again"
    )


def _named_inputs(data: Any) -> list[tuple[str, Any]]:
    """The tensors that a call reads, with the names that messages use."""
    if not isinstance(data[0], list):
        return list(zip(_NAMES[len(data)], data))
    parts = (("a", "b"), ("sfa", "sfb"), ("sfa_permuted", "sfb_permuted"))
    return [
        (f"{name}[{group}]", tensors[i])
        for names, part in zip(parts, data)
        for group, tensors in enumerate(part)
        for i, name in enumerate(names)
    ]


def _same_bits(a: Any, b: Any) -> bool:
    from utils import bits_of, tensors_of

    pairs = zip(tensors_of(a), tensors_of(b))
    return all(bits_of(x).equal(bits_of(y)) for x, y in pairs)
