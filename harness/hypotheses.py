"""What a wrong kernel may have computed instead: a hypothesis predicts the wrong elements.

A hypothesis is a function of a View (the inputs, and the places of some wrong elements) that yields
(name, predicted values). A new one is a few lines under `@hypothesis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from utils import ATOM_ROWS, MAGNITUDES

K_TILES = (256, 512, 1024)  # stages that may be dropped or doubled
MAX_STAGES = 64
BLOCK, STEP = 16, 64  # of K under a scale factor, in an instruction
TAILS = (64, 128, 192, 256, 512)
_VALUES = np.array([*MAGNITUDES, *(-v for v in MAGNITUDES)])
HYPOTHESES: list[Callable[[View], Iterator[tuple[str, np.ndarray]]]] = []


@dataclass(frozen=True)
class Operand:
    """A matrix. codes: uint8 (rows, K/2, L), two a byte; scales: float64 (rows, K/16, L)."""

    name: str
    codes: np.ndarray
    scales: np.ndarray

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def batches(self) -> int:
        return self.codes.shape[2]

    def elements(self, rows: np.ndarray, batch: np.ndarray, swap: bool = False) -> np.ndarray:
        """float64 [S, K] without scales; swap: the nibbles of each byte exchanged."""
        packed = self.codes[rows, :, batch]
        pair = (packed >> 4, packed & 15) if swap else (packed & 15, packed >> 4)
        return _VALUES[np.stack(pair, axis=2).reshape(len(rows), -1)]

    @cached_property
    def atoms(self) -> np.ndarray:
        """Scales as they lie in memory, one float64 for each byte: [L, bytes]."""
        rows, columns, batches = self.scales.shape
        padded = np.zeros((-(-rows // ATOM_ROWS) * ATOM_ROWS, -(-columns // 4) * 4, batches))
        padded[:rows, :columns] = self.scales
        grid = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4, batches)
        return grid.transpose(5, 0, 3, 2, 1, 4).reshape(batches, -1)

    def scales_at(
        self, rows: np.ndarray, batch: np.ndarray, transposed=False, shift=0, blocks=None
    ):
        """float64 [S, K/16] read from memory; transposed: row group and scale index of an atom
        exchanged; shift: bytes too far; blocks: the K block whose scale each K block takes.
        """
        columns = self.scales.shape[1]
        k = np.arange(columns) if blocks is None else blocks
        atom = (rows // ATOM_ROWS)[:, None] * -(-columns // 4) + k // 4
        group, inner = np.broadcast_arrays((rows % ATOM_ROWS // 32)[:, None], k % 4)
        if transposed:
            group, inner = inner, group
        at = atom * 512 + (rows % 32)[:, None] * 16 + group * 4 + inner + shift
        memory = self.atoms.reshape(-1)
        at = at + batch[:, None] * self.atoms.shape[1]
        return memory[np.clip(at, 0, memory.size - 1)]


class View:
    """The inputs of one group and the places (m, n, l) of wrong elements.

    rows_axis: 1 if the tensor core's 128 rows are c's columns (gemm, group), 0 for gemv and dual.
    neighbours: (place in the list, a, b) of the groups before and behind this one.
    """

    def __init__(self, a: Operand, b: list[Operand], m, n, l, shape, rows_axis: int, neighbours=()):
        self.a, self.b = a, b
        self.m, self.n, self.l = m, n, l
        self.shape, self.rows_axis, self.neighbours = shape, rows_axis, neighbours

    @property
    def dual(self) -> bool:
        return len(self.b) == 2

    def at(self, m=None, n=None, l=None) -> View:
        """The same with other places."""
        m = self.m if m is None else m
        n = self.n if n is None else n
        l = self.l if l is None else l
        return View(self.a, self.b, m, n, l, self.shape, self.rows_axis, self.neighbours)

    def of(self, a: Operand, b: list[Operand]) -> View | None:
        """The same places of another product; None where it has none, or a and b do not fit."""
        if a.codes.shape[1] != b[0].codes.shape[1]:
            return None
        if self.m.max() >= a.rows or self.n.max() >= b[0].rows:
            return None
        return View(a, b, self.m, self.n, self.l, self.shape, self.rows_axis)

    def inside(self) -> bool:
        """Whether all places exist."""
        pairs = zip((self.m, self.n, self.l), self.shape)
        return all(bool(((p >= 0) & (p < size)).all()) for p, size in pairs)

    def terms(self, which: int = 0, swap=(), scales: dict | None = None) -> np.ndarray:
        """float64 [S, K]: the products that add up to an element. swap: of operands "a", "b" the
        nibbles; scales: operand -> arguments of scales_at, or None for scales of 1.
        """
        parts = []
        for name, operand, rows in (("a", self.a, self.m), ("b", self.b[which], self.n)):
            values = operand.elements(rows, self.l, name in swap)
            how = (scales or {}).get(name, {})
            if how is not None:
                how = dict(how)
                row_map = how.pop("rows", None)
                at = rows if row_map is None else np.minimum(row_map(rows), operand.rows - 1)
                values = values * operand.scales_at(at, self.l, **how).repeat(16, axis=1)
            parts.append(values)
        return parts[0] * parts[1]

    def value(self, **how) -> np.ndarray:
        """The elements, float64 [S]: one product, or silu(p1) * p2."""
        return self.finish([self.terms(w, **how).sum(1) for w in range(len(self.b))])

    @staticmethod
    def finish(products: list[np.ndarray]) -> np.ndarray:
        return products[0] if len(products) == 1 else silu(products[0]) * products[1]

    def moved(self, axis: int, by: Callable[[np.ndarray], np.ndarray]) -> View:
        """Places whose coordinate on an axis (0: m, 1: n) is another."""
        return self.at(m=by(self.m)) if axis == 0 else self.at(n=by(self.n))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-np.clip(x, -700, 700)))


def hypothesis(function):
    """Register a generator of (name, predicted values)."""
    HYPOTHESES.append(function)
    return function


@hypothesis
def nothing_written(v: View):
    yield "the elements were never written (they are still zero)", np.zeros(len(v.m))


@hypothesis
def nibbles(v: View):
    for swap in (("a",), ("b",), ("a", "b")):
        yield (
            f"the two nibbles of each byte of {' and '.join(swap)} are swapped",
            v.value(swap=swap),
        )


@hypothesis
def scale_factors(v: View):
    for name in ("a", "b"):
        yield f"scale factors of {name} are not applied", v.value(scales={name: None})
        text = f"scale factors of {name} are transposed inside an atom (row group for K block)"
        yield text, v.value(scales={name: {"transposed": True}})
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
def scales_of_an_instruction(v: View):
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
def parts_of_k(v: View):
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
def steps_of_k(v: View):
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
def lane_quarters(v: View):
    for axis in (v.rows_axis, 1 - v.rows_axis):
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
def products_of_dual(v: View):
    if not v.dual:
        return
    p1, p2 = (v.terms(w).sum(1) for w in (0, 1))
    yield "only the first product, without silu", p1
    yield "only the second product", p2
    yield "silu of the first product alone", silu(p1)
    yield "no silu: the plain product of the two", p1 * p2
    yield "silu is applied to the second product, not the first", p1 * silu(p2)
    yield "silu is applied to both products", silu(p1) * silu(p2)
    yield "the first product twice", silu(p1) * p1
    yield "the second product twice", silu(p2) * p2


@hypothesis
def neighbours(v: View):
    for by in (1, -1):
        other = v.at(l=v.l + by)
        if other.inside():
            yield f"the batch {by:+d} is computed", other.value()
    if v.shape[2] > 1:
        yield "batch 0 is computed for every batch", v.at(l=np.zeros_like(v.l)).value()


@hypothesis
def neighbouring_groups(v: View):
    for by, a, b in v.neighbours:
        for what, other in (
            (f"the group {by:+d} is computed", v.of(a, b)),
            (f"b is taken from the group {by:+d}", v.of(v.a, b)),
            (f"a is taken from the group {by:+d}", v.of(a, v.b)),
        ):
            if other is not None:
                yield what, other.value()


@hypothesis
def accumulator(v: View):
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
def transposed(v: View):
    other = v.at(m=v.n, n=v.m)
    if other.inside():
        yield "the output is transposed", other.value()
    for size in (8, 16, 32, 64, 128):
        m, n = v.m // size * size + v.n % size, v.n // size * size + v.m % size
        other = v.at(m=m, n=n)
        if other.inside():
            yield f"blocks of {size} x {size} of the output are transposed", other.value()


def operand(name: str, codes: torch.Tensor, scales: torch.Tensor) -> Operand:
    """An Operand of torch tensors: codes (rows, K/2, L) fp4 pairs, scales (rows, K/16, L) ue4m3."""
    return Operand(name, codes.view(torch.uint8).cpu().numpy(), scales.cpu().double().numpy())
