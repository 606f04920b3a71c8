"""Rule: NaN that a launch reads from memory and that comes out again.

Scale factors of random bytes hold NaN (0x7F in e4m3, 0xFF in e8m0), and so does what an earlier
kernel got wrong; the result then shows NaN far from where it came in. If a launch has written NaN
to a tensor and one that it reads holds NaN, the launch is carried out again with zeros in the place
of the latter. If NaN of the result is then gone, it came from there: a note, with both places.

The program's tensors say which bytes are floats, so the rule is silent about memory that no tensor
of a float type holds. Memory that nobody has written is of another rule (unwritten.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.finding import NOTE
from b200.checker.observer import Observer
from b200.chip.alu.rounding import FLOATS
from b200.chip.contents import Contents
from b200.chip.global_memory import Region
from b200.chip.tensors import LiveTensors
from b200.chip.unwritten import LIMIT, UNIT, find
from b200.errors import EmulatorError

# Halfwords of a NaN as arithmetic makes it, and as torch and numpy write it: of f16 and bf16, of
# the upper half of an f32, of a pair of e4m3 or e8m0. A launch that writes none of them is not
# looked at.
USUAL = (0x7FFF, 0x7FC0, 0x7E00, 0x7F7F, 0xFFFF, 0xFFC0, 0xFE00)


class NanFormat(NamedTuple):
    """NaN of a type: patterns whose bits in `magnitude` are above `largest`."""

    dtype: type
    magnitude: int
    largest: int


_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
TYPES = {
    **{
        f"torch.{name}": NanFormat(FLOATS[of].bits_dtype, FLOATS[of].sign - 1, FLOATS[of].infinity)
        for of, name in _NAMES.items()
    },
    "torch.float8_e4m3fn": NanFormat(np.uint8, 0x7F, 0x7E),
    "torch.float8_e5m2": NanFormat(np.uint8, 0x7F, 0x7C),
    "torch.float8_e8m0fnu": NanFormat(np.uint8, 0xFF, 0xFE),
}


class Nans(NamedTuple):
    """NaN in a tensor of the program. region: the allocation. elements: the tensor's, as unsigned
    integers that share its memory. where: which of them are NaN.
    """

    name: str
    region: Region
    kind: NanFormat
    elements: np.ndarray
    where: np.ndarray

    def __str__(self) -> str:
        index = np.unravel_index(int(self.where.argmax()), self.where.shape)
        place = f"{self.name}[{', '.join(map(str, index))}]"
        return f"{place} is NaN, the first of {self.where.sum()} of {self.where.size} elements"


def look(observer: Observer, again: Callable[[], Callable[[int], object] | None]) -> None:
    """Report NaN that the launch has carried from one tensor to another. again: gives a function
    that carries the launch out once more, or None.
    """
    unwritten = observer.unwritten
    if not unwritten.wrote_any(USUAL):
        return
    written = [nans for region, old in unwritten.before.values() for nans in _made(region, old)]
    read = [nans for region, _ in unwritten.readers.values() for nans in _nans(region, region.u8)]
    carry_out = again() if written and read else None
    if carry_out is not None:
        gone = _gone(observer, written, read, carry_out)
        if gone is not None:
            _tell(observer, read, gone)


def _gone(
    observer: Observer, written: list[Nans], read: list[Nans], carry_out: Callable[[int], object]
) -> Nans | None:
    """The first of the results that has less NaN where there is none in what is read."""
    kept = Contents(r for r in observer.machine.memory.allocations() if r.size <= LIMIT)
    try:
        for region, old in observer.unwritten.before.values():
            region.u8[:] = old
        for nans in read:
            nans.elements[nans.where] = 0
        carry_out(0xFF)
        return next((n for n in written if not _is_nan(n.elements, n.kind)[n.where].all()), None)
    except EmulatorError:
        return None
    finally:
        kept.put_back()


def _made(region: Region, old: np.ndarray) -> Iterator[Nans]:
    """NaN in tensors of an allocation that was not there before the launch."""
    before = {nans.name: nans.where for nans in _nans(region, old)}
    for nans in _nans(region, region.u8):
        where = nans.where & ~before.get(nans.name, np.zeros_like(nans.where))
        if where.any():
            yield nans._replace(where=where)


def _nans(region: Region, data: np.ndarray) -> Iterator[Nans]:
    """NaN in the tensors of an allocation, but for the pattern of unwritten memory. data: the
    allocation's bytes now, or at another time.
    """
    seen = set()
    for name, tensor in LiveTensors.held(region.base, region.size):
        kind = TYPES.get(str(tensor.dtype))
        view = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), kind
        if view in seen:
            continue
        seen.add(view)
        if kind is None or not tensor.numel() or tensor.numel() * tensor.element_size() > LIMIT:
            continue
        elements = _elements(data, tensor, region, kind)
        where = _is_nan(elements, kind)
        if where.any():
            where &= ~_is_pattern(data, tensor, region, kind)
        if where.any():
            yield Nans(name, region, kind, elements, where)


def _elements(data: np.ndarray, tensor: Any, region: Region, kind: NanFormat) -> np.ndarray:
    """A tensor's elements in the bytes of its allocation."""
    size = tensor.element_size()
    strides = [size * step for step in tensor.stride()]
    start = data[tensor.data_ptr() - region.base :]
    whole = start[: start.size // size * size].view(kind.dtype)
    return np.lib.stride_tricks.as_strided(whole, tuple(tensor.shape), strides)


def _is_nan(elements: np.ndarray, kind: NanFormat) -> np.ndarray:
    return elements & kind.dtype(kind.magnitude) > kind.dtype(kind.largest)


def _is_pattern(data: np.ndarray, tensor: Any, region: Region, kind: NanFormat) -> np.ndarray:
    """Which elements of a tensor nobody has written."""
    holes = find(data)
    if holes is None:
        return np.zeros(tuple(tensor.shape), bool)
    nobody = np.zeros(data.size, np.uint8)
    nobody[: holes.size * UNIT] = np.repeat(holes, UNIT)
    return _elements(nobody, tensor, region, kind) != 0


def _tell(observer: Observer, read: list[Nans], result: Nans) -> None:
    readers = [observer.unwritten.readers[nans.region.base][1] for nans in read]
    observer.found(
        "numerics",
        f"NaN of {read[0].name} comes out in {result.name}",
        *(f"read at {words.line(ins)}: {nans}" for nans, ins in zip(read, readers)),
        f"written: {result}; with zeros for what is NaN in what is read, fewer are",
        "missing: numbers there (bytes at random are no scale factors: some are NaN), or a guard",
        at=readers[0],
        severity=NOTE,
    )
