"""The inputs of a problem as hypotheses see them: operands, and the places of wrong elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from utils import ATOM_ROWS, ATOM_SCALES, MAGNITUDES

ATOM_BYTES = ATOM_ROWS * ATOM_SCALES
_VALUES = np.array([*MAGNITUDES, *(-v for v in MAGNITUDES)])


@dataclass(frozen=True)
class AtomOrder:
    """How the 128 rows x 4 K blocks of an atom follow each other in its 512 bytes.

    inner: the row is row / inner and row % inner. digits: slowest first, of "/" (row / inner), "%"
    (row % inner) and "k" (K block).
    """

    inner: int
    digits: tuple[str, str, str]

    def __str__(self) -> str:
        words = {"/": f"[row / {self.inner}]", "%": f"[row % {self.inner}]", "k": "[K block]"}
        text = "".join(words[digit] for digit in self.digits)
        return text.replace(words["/"] + words["%"], "[row]")

    def offset(self, row: np.ndarray, k: np.ndarray) -> np.ndarray:
        sizes = {"/": ATOM_ROWS // self.inner, "%": self.inner, "k": ATOM_SCALES}
        values = {"/": row // self.inner, "%": row % self.inner, "k": k}
        at = np.zeros(1, np.int64)
        for digit in self.digits:
            at = at * sizes[digit] + values[digit]
        return at


RIGHT_ORDER = AtomOrder(32, ("%", "/", "k"))


def atom_orders() -> list[AtomOrder]:
    """The orders that differ from each other and from the right one."""
    row, k = np.arange(ATOM_ROWS)[:, None], np.arange(ATOM_SCALES)
    found = {RIGHT_ORDER.offset(row, k).tobytes(): RIGHT_ORDER}
    for inner, digits in itertools.product((32, 4), itertools.permutations("/%k")):
        order = AtomOrder(inner, digits)  # type: ignore[arg-type]  # three, of three
        found.setdefault(order.offset(row, k).tobytes(), order)
    return list(found.values())[1:]


@dataclass(frozen=True)
class Operand:
    """A matrix. codes: uint8 (rows, K/2, L), two a byte; scales: float64 (rows, K/16, L); atoms:
    float64 [L, bytes], the permuted scales as they lie in memory, padding included.
    """

    name: str
    codes: np.ndarray
    scales: np.ndarray
    atoms: np.ndarray

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def batches(self) -> int:
        return self.codes.shape[2]

    def elements(
        self, rows: np.ndarray, batch: np.ndarray, swap: bool = False, pitch: int | None = None
    ) -> np.ndarray:
        """float64 [S, K] without scales. swap: the nibbles of each byte exchanged; pitch: bytes
        from a row to the next, if not the right ones.
        """
        packed = self.codes[rows, :, batch]
        if pitch is not None:
            at = (rows * pitch + batch * self.in_memory.size // self.batches)[:, None]
            at = at + np.arange(self.codes.shape[1])
            packed = self.in_memory[np.minimum(at, self.in_memory.size - 1)]
        pair = (packed >> 4, packed & 15) if swap else (packed & 15, packed >> 4)
        return _VALUES[np.stack(pair, axis=2).reshape(len(rows), -1)]

    def random(self, rng: np.random.Generator) -> Operand:
        """Another of this shape, with any codes and scales."""
        codes = rng.integers(0, 256, self.codes.shape, np.uint8)
        other = Operand(self.name, codes, self.scales, rng.integers(1, 64, self.atoms.shape) / 8)
        rows = np.arange(self.rows)
        scales = [other.scales_at(rows, np.full_like(rows, l)) for l in range(self.batches)]
        return replace(other, scales=np.stack(scales, 2))

    @cached_property
    def in_memory(self) -> np.ndarray:
        """The codes as they lie in memory: uint8 [L * rows * K/2]."""
        return np.ascontiguousarray(self.codes.transpose(2, 0, 1)).reshape(-1)

    @cached_property
    def plain(self) -> np.ndarray:
        """The scales that are not permuted, as they lie in memory: float64 [L, bytes]."""
        return np.ascontiguousarray(self.scales.transpose(2, 0, 1)).reshape(self.batches, -1)

    def scales_at(
        self,
        rows: np.ndarray,
        batch: np.ndarray,
        shift: int = 0,
        blocks: np.ndarray | None = None,
        order: AtomOrder = RIGHT_ORDER,
        down: bool = False,
        unpermuted: bool = False,
        plain: bool = False,
    ) -> np.ndarray:
        """float64 [S, K/16] read from memory. shift: bytes too far; blocks: the K block whose scale
        each K block takes; order: of the bytes inside an atom; down: atoms below each other follow
        each other, not those along K; unpermuted: the permuted scales are read as if they were not;
        plain: those that are not permuted are read as if they were.
        """
        columns = self.scales.shape[1]
        k = np.arange(columns) if blocks is None else blocks
        row_atoms, k_atoms = -(-self.rows // ATOM_ROWS), -(-columns // ATOM_SCALES)
        row_atom, k_atom = (rows // ATOM_ROWS)[:, None], k // ATOM_SCALES
        atom = k_atom * row_atoms + row_atom if down else row_atom * k_atoms + k_atom
        inside = order.offset((rows % ATOM_ROWS)[:, None], k % ATOM_SCALES)
        at = rows[:, None] * columns + k if unpermuted else atom * ATOM_BYTES + inside
        memory = self.plain if plain else self.atoms
        at = at + shift + batch[:, None] * memory.shape[1]
        return memory.reshape(-1)[np.clip(at, 0, memory.size - 1)]


class View:
    """The inputs of one group and places (m, n, l) of its output.

    before: what the output held there before the call, float64 [S], None where that is not known.
    neighbours: (place in the list, a, b) of the groups before and after this one.
    """

    def __init__(
        self,
        a: Operand,
        b: list[Operand],
        m: np.ndarray,
        n: np.ndarray,
        l: np.ndarray,
        shape: tuple[int, ...],
        before: np.ndarray | None = None,
        neighbours: Sequence = (),
    ):
        self.a, self.b = a, b
        self.m, self.n, self.l = m, n, l
        self.shape, self.before, self.neighbours = shape, before, neighbours
        # (operand, which of b, "codes" or "values") -> what most hypotheses leave as it is
        self._usual: dict[tuple[str, int, str], np.ndarray] = {}

    @property
    def dual(self) -> bool:
        return len(self.b) == 2

    def at(
        self,
        m: np.ndarray | None = None,
        n: np.ndarray | None = None,
        l: np.ndarray | None = None,
    ) -> View:
        """The same with other places."""
        m = self.m if m is None else m
        n = self.n if n is None else n
        l = self.l if l is None else l
        return View(self.a, self.b, m, n, l, self.shape, None, self.neighbours)

    def of(self, a: Operand, b: list[Operand]) -> View | None:
        """The same places of another product; None where it has none, or a and b do not fit."""
        if a.codes.shape[1] != b[0].codes.shape[1]:
            return None
        if self.m.max() >= a.rows or self.n.max() >= b[0].rows:
            return None
        return View(a, b, self.m, self.n, self.l, self.shape)

    def inside(self) -> bool:
        """Whether all places exist."""
        pairs = zip((self.m, self.n, self.l), self.shape)
        return all(bool(((p >= 0) & (p < size)).all()) for p, size in pairs)

    def terms(
        self,
        which: int = 0,
        swap: Collection[str] = (),
        scales: dict[str, Any] | None = None,
        pitch: dict[str, Any] | None = None,
    ) -> np.ndarray:
        """float64 [S, K]: the products that add up to an element. swap: of operands "a", "b" the
        nibbles; scales: operand -> arguments of scales_at, or None for scales of 1, and "of": the
        operand whose scales are read; pitch: operand -> bytes from a row to the next.
        """
        parts: list[np.ndarray] = []
        for name in ("a", "b"):
            operand, rows = self._operand(name, which)
            swapped, apart = name in swap, (pitch or {}).get(name)
            how = (scales or {}).get(name, {})
            usual = not swapped and apart is None
            if usual and how == {}:
                parts.append(self._values(name, which))
                continue
            if usual:
                values = self._codes(name, which)
            else:
                values = operand.elements(rows, self.l, swapped, apart)
            if how is not None:
                how = dict(how)
                row_map = how.pop("rows", None)
                source, _ = self._operand(how.pop("of", name), which)
                at = rows if row_map is None else np.minimum(row_map(rows), source.rows - 1)
                values = values * source.scales_at(at, self.l, **how).repeat(16, axis=1)
            parts.append(values)
        return parts[0] * parts[1]

    def _operand(self, name: str, which: int) -> tuple[Operand, np.ndarray]:
        """Operand "a" or "b", and its rows that the elements are of."""
        return (self.a, self.m) if name == "a" else (self.b[which], self.n)

    def _codes(self, name: str, which: int) -> np.ndarray:
        """float64 [S, K]: the right elements of "a" or "b", without scales."""
        if (kept := self._usual.get((name, which, "codes"))) is None:
            operand, rows = self._operand(name, which)
            kept = self._usual[name, which, "codes"] = operand.elements(rows, self.l)
        return kept

    def _values(self, name: str, which: int) -> np.ndarray:
        """float64 [S, K]: those with their own scales."""
        if (kept := self._usual.get((name, which, "values"))) is None:
            operand, rows = self._operand(name, which)
            scales = operand.scales_at(rows, self.l).repeat(16, axis=1)
            kept = self._usual[name, which, "values"] = self._codes(name, which) * scales
        return kept

    def value(self, **how: Any) -> np.ndarray:
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


def operand(
    name: str, codes: torch.Tensor, scales: torch.Tensor, permuted: torch.Tensor
) -> Operand:
    """An Operand of torch tensors: codes (rows, K/2, L) fp4 pairs, scales (rows, K/16, L) ue4m3,
    permuted (32, 4, ceil(rows/128), 4, ceil(K/64), L).
    """
    atoms = permuted.cpu().permute(5, 2, 4, 0, 1, 3).contiguous().double()
    return Operand(
        name,
        codes.view(torch.uint8).cpu().numpy(),
        scales.cpu().double().numpy(),
        atoms.reshape(codes.shape[2], -1).numpy(),
    )
