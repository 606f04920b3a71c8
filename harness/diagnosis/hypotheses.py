"""What a wrong kernel may have computed instead: a hypothesis predicts the wrong elements.

A hypothesis is a function of a View (the inputs, and the places of some wrong elements) that yields
(name, predicted values [S], or [C, S] where any of C values would do). A new one is a few lines
under `@hypothesis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.diagnosis.view import RIGHT_ORDER, View, atom_orders, silu

K_TILES = (256, 512, 1024)  # stages that may be dropped or doubled
MAX_STAGES = 64
BLOCK, STEP = 16, 64  # of K under a scale factor, in an instruction
TAILS = (64, 128, 192, 256, 512)
Predictions = Iterator[tuple[str, np.ndarray]]  # what went wrong, and the values it would give
Hypothesis = Callable[[View], Predictions]

HYPOTHESES: list[Hypothesis] = []


def hypothesis(function: Hypothesis) -> Hypothesis:
    """Register a generator of (name, predicted values)."""
    HYPOTHESES.append(function)
    return function


@hypothesis
def nothing_written(v: View) -> Predictions:
    yield "the elements are zero: never written, or no product was added up", np.zeros(len(v.m))
    if v.before is not None:
        yield "the elements were never written: c has there what it had before the call", v.before


@hypothesis
def nibbles(v: View) -> Predictions:
    for swap in (("a",), ("b",), ("a", "b")):
        yield (
            f"the two nibbles of each byte of {' and '.join(swap)} are swapped",
            v.value(swap=swap),
        )


_OTHER_ORDERS: tuple[tuple[dict[str, Any], str], ...] = (
    *(
        ({"order": order}, f"read as if an atom's bytes lay as {order}; they lie as {RIGHT_ORDER}")
        for order in atom_orders()
    ),
    ({"down": True}, "read as if atoms lay below each other in memory; they lie along K"),
    ({"unpermuted": True}, "read out of the permuted tensor as if it were not permuted"),
    ({"plain": True}, "read out of the tensor that is not permuted as if it were"),
)


@hypothesis
def scale_factors(v: View) -> Predictions:
    for names in (("a",), ("b",), ("a", "b")):
        of = f"scale factors of {' and '.join(names)} are"
        yield f"{of} not applied", v.value(scales=dict.fromkeys(names))
        for how, said in _OTHER_ORDERS:
            yield f"{of} {said}", v.value(scales=dict.fromkeys(names, how))
    for name in ("a", "b"):
        for shift, what in (
            (1, "one K block"),
            (4, "one row group"),
            (16, "one row"),
            (512, "one atom"),
        ):
            for sign in (1, -1):
                where = "on" if sign > 0 else "back"
                text = f"scale factors of {name} are read {what} ({shift} bytes) further {where}"
                yield text, v.value(scales={name: {"shift": sign * shift}})
        for group in range(1, 4):
            rows = _rotate(group)
            text = (
                f"scale factors of {name} are taken from the row group {group} further (of 32 rows)"
            )
            yield text, v.value(scales={name: {"rows": rows}})


@hypothesis
def scales_of_an_instruction(v: View) -> Predictions:
    """An instruction's K-step has four scale factors; they are not advanced, or not reloaded."""
    for name, of in (("a", v.a), ("b", v.b[0])):
        columns = np.arange(of.scales.shape[1])
        for size in K_TILES:
            per = size // BLOCK
            if len(columns) <= STEP // BLOCK:
                continue
            first = columns // per * per + columns % (STEP // BLOCK)
            text = f"scale factors of {name} are not advanced: each K-step of {STEP} takes those of"
            yield (
                f"{text} the first of its K tile (of {size})",
                v.value(scales={name: {"blocks": first}}),
            )
            if len(columns) > per:
                yield (
                    f"{text} its place in the first K tile (of {size})",
                    v.value(scales={name: {"blocks": columns % per}}),
                )


def _rotate(by: int) -> Callable[[np.ndarray], np.ndarray]:
    """Row -> the row `by` quarters of 32 further in its 128."""
    return lambda r: r // 128 * 128 + (r % 128 + 32 * by) % 128


@hypothesis
def parts_of_k(v: View) -> Predictions:
    """Each product is a sum over K; a part of it is missing or counted twice."""
    terms = [v.terms(w) for w in range(len(v.b))]
    k = terms[0].shape[1]
    for tail in TAILS:
        if tail < k:
            yield (
                f"the last {tail} of K are dropped",
                v.finish([t[:, :-tail].sum(1) for t in terms]),
            )
    for size in K_TILES:
        stages = -(-k // size)
        if not 1 < stages <= MAX_STAGES:
            continue
        for i in range(stages):
            part = [t[:, i * size : (i + 1) * size].sum(1) for t in terms]
            whole = [t.sum(1) for t in terms]
            where = f"the K tile {i} of {stages} (of {size})"
            yield f"{where} is dropped", v.finish([x - p for x, p in zip(whole, part)])
            yield f"{where} is counted twice", v.finish([x + p for x, p in zip(whole, part)])


@hypothesis
def steps_of_k(v: View) -> Predictions:
    """K-steps of one instruction, in every K tile alike; sums that are started too often."""
    terms = [v.terms(w) for w in range(len(v.b))]
    k = terms[0].shape[1]
    whole = [t.sum(1) for t in terms]
    step = np.arange(k) // STEP
    for size in K_TILES:
        if size > k:
            continue
        for i in range(size // STEP):
            part = [t[:, step % (size // STEP) == i].sum(1) for t in terms]
            where = f"the K-step {i} of {size // STEP} (of {STEP}) of every K tile"
            yield f"{where} is dropped", v.finish([x - p for x, p in zip(whole, part)])
            yield f"{where} is counted twice", v.finish([x + p for x, p in zip(whole, part)])
        last = slice((k - 1) // size * size, None)
        text = f"the accumulator is reset for each K tile: only the last (of {size}) counts"
        yield text, v.finish([t[:, last].sum(1) for t in terms])
    text = f"nothing is accumulated: only the last K-step (of {STEP}) counts"
    yield text, v.finish([t[:, step == step[-1]].sum(1) for t in terms])


@hypothesis
def lane_quarters(v: View) -> Predictions:
    for axis in (0, 1):
        what = ("rows", "columns")[axis]
        for by in range(1, 4):
            other = v.moved(axis, _rotate(by))
            if other.inside():
                text = (
                    f"{what} are read from the lane quarter {by} further (another warp's 32 lanes)"
                )
                yield text, other.value()
        for quarter in range(4):
            other = v.moved(axis, lambda r, q=quarter: r // 128 * 128 + 32 * q + r % 32)
            if other.inside():
                yield f"all warps read lane quarter {quarter} of the {what}", other.value()


@hypothesis
def products_of_dual(v: View) -> Predictions:
    if not v.dual:
        return
    p1, p2 = (v.terms(w).sum(1) for w in (0, 1))
    yield "only the first product, without silu", p1
    yield "only the second product", p2
    yield "silu of the first product alone", silu(p1)
    yield "no silu: the plain product of the two", p1 * p2
    yield "silu is applied to the second product, not the first", p1 * silu(p2)
    yield "silu is applied to both products", silu(p1) * silu(p2)
    with np.errstate(over="ignore"):
        h1, h2 = (p.astype(np.float16).astype(np.float64) for p in (p1, p2))
        rounded = silu(h1) * h2
    yield "the two products are rounded to fp16 before silu and the product of the two", rounded
    yield "the first product twice", silu(p1) * p1
    yield "the second product twice", silu(p2) * p2


@hypothesis
def neighbours(v: View) -> Predictions:
    for by in (1, -1):
        other = v.at(l=v.l + by)
        if other.inside():
            yield f"the batch {by:+d} is computed", other.value()
    if v.shape[2] > 1:
        yield "batch 0 is computed for every batch", v.at(l=np.zeros_like(v.l)).value()


@hypothesis
def neighbouring_groups(v: View) -> Predictions:
    for by, a, b in v.neighbours:
        for what, other in (
            (f"the group {by:+d} is computed", v.of(a, b)),
            (f"b is taken from the group {by:+d}", v.of(v.a, b)),
            (f"a is taken from the group {by:+d}", v.of(a, v.b)),
        ):
            if other is not None:
                yield what, other.value()


@hypothesis
def accumulator(v: View) -> Predictions:
    """The tensor core adds to what the tile before left."""
    own = [v.terms(w).sum(1) for w in range(len(v.b))]
    for axis in (0, 1):
        for tile in (8, 16, 32, 64, 128, 192, 256):
            before = v.moved(axis, lambda r, t=tile: r - t)
            if not before.inside():
                continue
            left = [before.terms(w).sum(1) for w in range(len(v.b))]
            what = f"the tile {tile} {('rows', 'columns')[axis]} before"
            text = f"the accumulator is not reset: it still holds {what}"
            yield text, v.finish([x + y for x, y in zip(own, left)])
            yield f"the result of {what} is stored", v.finish(left)
    before = v.at(l=v.l - 1)
    if before.inside():
        left = [before.terms(w).sum(1) for w in range(len(v.b))]
        text = "the accumulator is not reset: it still holds the batch before"
        yield text, v.finish([x + y for x, y in zip(own, left)])


@hypothesis
def transposed(v: View) -> Predictions:
    other = v.at(m=v.n, n=v.m)
    if other.inside():
        yield "the output is transposed", other.value()
    for size in (8, 16, 32, 64, 128):
        m, n = v.m // size * size + v.n % size, v.n // size * size + v.m % size
        other = v.at(m=m, n=n)
        if other.inside():
            yield f"blocks of {size} x {size} of the output are transposed", other.value()


@hypothesis
def leading_dimension_of_c(v: View) -> Predictions:
    """c is stored as if its memory had other strides: column after column, or longer rows."""
    rows, columns, _ = v.shape
    at = v.m * columns + v.n  # of the element that is read there, in its batch
    for pitch in _pitches(rows, rows, columns):
        what = f"c is stored column after column (leading dimension {pitch}); its rows are to be"
        yield f"{what} contiguous", _where_stored(v, at % pitch, at // pitch)
    for pitch in _pitches(columns, rows, columns):
        if pitch == columns:
            continue
        # Where rows are too close to each other, several fall on one place: any may be the last.
        values = [
            _where_stored(v, at // pitch - i, at % pitch + i * pitch)
            for i in range(-(-columns // pitch))
        ]
        yield f"c is stored with a leading dimension of {pitch}, not {columns}", np.stack(values)


@hypothesis
def leading_dimension_of_inputs(v: View) -> Predictions:
    for name, own, other in (("a", v.a, v.b[0]), ("b", v.b[0], v.a)):
        pitch = own.codes.shape[1]  # bytes
        for wrong in sorted({2 * pitch, pitch // 2, own.rows, other.rows} - {0, pitch}):
            yield (
                f"rows of {name} are read {wrong} bytes apart, not {pitch} (K / 2)",
                v.value(pitch={name: wrong}),
            )


def _pitches(own: int, rows: int, columns: int) -> list[int]:
    """Leading dimensions that a program may take for one of `own`."""
    rounded = [-(-own // tile) * tile for tile in (64, 128, 256)]
    return sorted({own, rows, columns, *rounded, own // 2, 2 * own} - {0})


def _where_stored(v: View, m: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The element (m, n) at each place; where there is none, what was there before."""
    exists = (m >= 0) & (n >= 0) & (m < v.shape[0]) & (n < v.shape[1])
    values = v.before.copy() if v.before is not None else np.full(len(m), np.nan)
    if exists.any():
        values[exists] = View(v.a, v.b, m[exists], n[exists], v.l[exists], v.shape).value()
    return values
