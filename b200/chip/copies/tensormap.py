"""The tensormap: the 128-byte object that describes a tensor to TMA.

The layout of its bits was found by sweeping one parameter of an encoder at a time; only the first
64 bytes matter. The limits are those of PTX ISA 5.5 and of the driver's cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.global_memory import Region
from b200.errors import Fault

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.global_memory import GlobalMemory

BYTES, USED_BYTES, ALIGN = 128, 64, 64
SPANS = (0, 32, 64, 128)  # bytes of a swizzle mode's row
ATOMICITIES = ("16B", "32B", "32B with 8B flip", "64B")


@dataclass(frozen=True)
class ElementType:
    """A type of elements. bits: of an element in global memory. padded: whether 16 elements take 16
    bytes in shared memory.
    """

    name: str
    bits: int
    floating: bool = False
    padded: bool = False


# Index: the element format code of the object.
ELEMENT_TYPES = (
    ElementType("u8", 8),
    ElementType("u16", 16),
    ElementType("u32", 32),
    ElementType("s32", 32),
    ElementType("u64", 64),
    ElementType("s64", 64),
    ElementType("f16", 16, floating=True),
    ElementType("f32", 32, floating=True),
    ElementType("f32.ftz", 32, floating=True),
    ElementType("f64", 64, floating=True),
    ElementType("bf16", 16, floating=True),
    ElementType("b4x16", 4),
    ElementType("b4x16_p64", 4, padded=True),
    ElementType("b6x16_p32", 6, padded=True),
)
# Fields as (first bit, width) in the object read as one little-endian number; one a dimension.
ADDRESS, RANK, FORMAT, INTERLEAVE = (0, 64), (68, 3), (71, 4), (75, 2)
SWIZZLE, FILL, TF32, ATOMICITY, RESERVED = (77, 2), (79, 1), (80, 1), (83, 2), (86, 10)
STRIDES_LOW = ((96, 32), (128, 32), (160, 32), (192, 32))
STRIDES_HIGH = ((224, 4), (228, 4), (232, 4), (236, 4))
DIMS = ((256, 32), (288, 32), (320, 32), (352, 32), (384, 32))
STEPS = ((416, 3), (419, 3), (422, 3), (425, 3), (428, 3))
BOX = ((440, 8), (448, 8), (456, 8), (464, 8), (472, 8))


def get_field(bits: int, place: tuple[int, int]) -> int:
    """The value of the field at `place`. bits: the tensormap object as one number."""
    return bits >> place[0] & ((1 << place[1]) - 1)


def put_field(bits: int, place: tuple[int, int], value: int) -> int:
    """The tensormap object, as one number, with the field at `place` replaced."""
    first, width = place
    mask = (1 << width) - 1
    return bits & ~(mask << first) | (value & mask) << first


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor in global memory and the box that one TMA operation moves.

    Dimension 0 is contiguous. address: first byte; format: index of ELEMENT_TYPES; dims: elements
    a dimension; strides: bytes from one index to the next of dimensions 1, 2, ...; box: elements a
    dimension; steps: traversal strides (elements); swizzle: index of SPANS; atomicity: index of
    ATOMICITIES; fill_nan: what is read out of bounds; tf32: whether f32 is rounded to tf32 on a
    load.
    """

    address: int
    format: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = field(default=())
    swizzle: int = 0
    atomicity: int = 0
    interleave: int = 0
    fill_nan: bool = False
    tf32: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element(self) -> ElementType:
        return ELEMENT_TYPES[self.format]

    @cached_property
    def form(self) -> tuple[object, ...]:
        """The fields that shape a box, without those of its place and of the tensor's size."""
        shape = self.format, self.box, self.steps, self.interleave
        return *shape, self.swizzle, self.atomicity, self.fill_nan, self.tf32

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements moved in each dimension: box over traversal stride (ignored in dimension 0)."""
        steps = self.steps or (1,) * self.rank
        return self.box[:1] + tuple(-(-b // s) for b, s in zip(self.box[1:], steps[1:]))

    @cached_property
    def jumps(self) -> tuple[int, ...]:
        """Bytes from one moved element to the next in dimensions 1, 2, ..."""
        steps = self.steps or (1,) * self.rank
        return tuple(b * s for b, s in zip(self.strides, steps[1:]))

    @cached_property
    def box_rows(self) -> int:
        """Rows of the box."""
        return prod(self.counts[1:])

    @cached_property
    def box_shape(self) -> tuple[int, ...]:
        """The box in bytes of global memory, slowest dimension first."""
        return *reversed(self.counts[1:]), self.row_bytes

    @cached_property
    def box_strides(self) -> tuple[int, ...]:
        """Bytes from one row of the box to the next, by dimension of `box_shape`."""
        return *reversed(self.jumps), 1

    @cached_property
    def box_extent(self) -> int:
        """Bytes from the first byte of a box in global memory to the end of its last."""
        return 1 + sum((n - 1) * step for n, step in zip(self.box_shape, self.box_strides))

    @cached_property
    def last_starts(self) -> tuple[int, ...]:
        """For each dimension, the last start coordinate of a box that lies wholly in the tensor."""
        steps = self.steps or (1,) * self.rank
        reach = (self.box[0], *((n - 1) * s + 1 for n, s in zip(self.counts[1:], steps[1:])))
        return tuple(dim - n for dim, n in zip(self.dims, reach))

    def holds(self, coords: list[int]) -> bool:
        """Whether the whole box that starts at `coords` lies in the tensor."""
        for at, last in zip(coords, self.last_starts):
            if at < 0 or at > last:
                return False
        return True

    def offset(self, coords: list[int]) -> int:
        """Bytes from the tensor's first byte to the box that starts at `coords`."""
        found = coords[0] * self.element.bits // 8
        for at, stride in zip(coords[1:], self.strides):
            found += at * stride
        return found

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row of the box in global memory."""
        return self.box[0] * self.element.bits // 8

    @cached_property
    def smem_row_bytes(self) -> int:
        """Bytes of a row of the box in shared memory, padding of sub-byte types included."""
        return self.box[0] if self.element.padded else self.row_bytes

    @cached_property
    def pitch(self) -> int:
        """Bytes from one row of the box to the next in shared memory."""
        return SPANS[self.swizzle] or self.smem_row_bytes

    @cached_property
    def extent(self) -> int:
        """Bytes from the tensor's first element to the end of its last."""
        reach = sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides))
        return reach + (self.dims[0] * self.element.bits + 7) // 8

    def __str__(self):
        parts = [f"dim0 {self.dims[0]} x {self.element.name}"]
        for i, (count, stride) in enumerate(zip(self.dims[1:], self.strides)):
            parts.append(f"dim{i + 1} {count} stride {stride} B")
        return f"tensormap ({', '.join(parts)}; box {' x '.join(map(str, self.box))})"

    def encode(self) -> bytes:
        """The 128 bytes; the inverse of `decode`."""
        bits = put_field(0, ADDRESS, self.address)
        for place, value in (
            (RANK, self.rank - 1),
            (FORMAT, self.format),
            (INTERLEAVE, self.interleave),
            (SWIZZLE, self.swizzle),
            (FILL, self.fill_nan),
            (TF32, self.tf32),
            (ATOMICITY, self.atomicity),
        ):
            bits = put_field(bits, place, value)
        for i, stride in enumerate(self.strides):
            bits = put_stride(bits, i, stride)
        for places, values in ((DIMS, self.dims), (BOX, self.box), (STEPS, self.steps)):
            for place, value in zip(places, values):
                bits = put_field(bits, place, value - 1)
        return bits.to_bytes(BYTES, "little")

    def allocation(self, memory: GlobalMemory, boxes: Sequence[Sequence[int]] = ()) -> Region:
        """The allocation of global memory in which the tensor begins. It may end before the tensor
        does: the chip checks only what a box touches (tma_box.Window). Raises Fault if there is
        none.

        boxes: start coordinates of those that are stored. Where the tensor begins in no allocation,
        the one that the first box lies in: kernels for rows of different lengths move the address
        back and the coordinates on (QuACK, "ptr_shift": so for stores, not for loads).
        """
        try:
            return memory.region(self.address, 1)
        except Fault as fault:
            inside = [b for b in boxes if all(at < size for at, size in zip(b, self.dims))]
            for box in inside:
                with contextlib.suppress(Fault):
                    first = self.offset([max(0, at) for at in box])
                    return memory.region(self.address + first, 1)
            if boxes and not inside:  # nothing is stored
                return Region(self.address, np.empty(0, np.uint8), "no memory")
            raise Fault(f"{self}: its global address is wrong: {fault}") from None

    def too_large(self, region: Region) -> str:
        """The text for a box that touches memory after the allocation."""
        room = region.base + region.size - self.address
        text = (
            f"{self} spans {self.extent} bytes from {self.address:#x}, but {region.name} "
            f"[{region.base:#x}, {region.base + region.size:#x}) has only {room} bytes from there: "
            f"{self.extent - room} too few"
        )
        return text + "".join(f"; {hint}" for hint in self._hints(room))

    def _hints(self, room: int):
        """What would make the tensor fit: the usual mistakes, one sentence each."""
        row = (self.dims[0] * self.element.bits + 7) // 8

        def fits(strides: Sequence[int]) -> bool:
            return sum((d - 1) * s for d, s in zip(self.dims[1:], strides)) + row <= room

        for last in range(self.rank - 1, 0, -1):
            if fits(self.strides[: last - 1]):
                yield f"without dim{last} it would fit: is dim{last}, or its stride, one too many?"
                break
        for other in permutations(self.strides):
            if other != self.strides and fits(other):
                order = ", ".join(f"dim{i + 1} {s} B" for i, s in enumerate(other))
                yield f"with the strides in the order {order} it would fit: are they swapped?"
                break
        if self.element.bits < 8 and fits([s * self.element.bits // 8 for s in self.strides]):
            yield "with the strides taken as elements it would fit: they must be bytes"


def put_stride(bits: int, i: int, stride: int) -> int:
    """The tensormap object, as one number, with the stride (bytes) of dimension i + 1 replaced."""
    bits = put_field(bits, STRIDES_LOW[i], stride >> 4)
    return put_field(bits, STRIDES_HIGH[i], stride >> 36)


def decode(raw: bytes) -> TensorMap:
    """The tensormap in (at least) 64 bytes. Raises Fault naming a field that hardware rejects."""
    return _decode(bytes(raw[:USED_BYTES]))


@lru_cache(maxsize=4096)
def _decode(raw: bytes) -> TensorMap:
    bits = int.from_bytes(raw, "little")
    if reserved := get_field(bits, RESERVED):
        raise Fault(
            f"not a tensormap: reserved bits 22-31 of its second word are {reserved:#x}, must be 0"
        )
    rank = get_field(bits, RANK) + 1
    if rank > 5:
        raise Fault(f"tensormap field rank is {rank}: must be 1..5")
    if get_field(bits, FORMAT) >= len(ELEMENT_TYPES):
        raise Fault(
            f"tensormap field elemtype has code {get_field(bits, FORMAT)}: "
            f"must be 0..{len(ELEMENT_TYPES) - 1}"
        )
    strides = tuple(
        (get_field(bits, low) | get_field(bits, high) << 32) << 4
        for low, high in zip(STRIDES_LOW, STRIDES_HIGH)
    )
    tensormap = TensorMap(
        address=get_field(bits, ADDRESS),
        format=get_field(bits, FORMAT),
        dims=tuple(get_field(bits, place) + 1 for place in DIMS[:rank]),
        strides=strides[: rank - 1],
        box=tuple(get_field(bits, place) + 1 for place in BOX[:rank]),
        steps=tuple(get_field(bits, place) + 1 for place in STEPS[:rank]),
        swizzle=get_field(bits, SWIZZLE),
        atomicity=get_field(bits, ATOMICITY),
        interleave=get_field(bits, INTERLEAVE),
        fill_nan=bool(get_field(bits, FILL)),
        tf32=bool(get_field(bits, TF32)),
    )
    for problem in violations(tensormap):
        raise Fault(f"tensormap field {problem}, in {tensormap}")
    return tensormap


def violations(t: TensorMap) -> Iterator[str]:
    """The reasons why hardware rejects a tensormap: sentences that begin with the field's name."""
    element = t.element
    align = 32 if element.padded or t.interleave == 2 else 16
    if t.address % align or t.address >> 57:
        yield f"global_address {t.address:#x}: must be a multiple of {align} below 2^57"
    for i, stride in enumerate(t.strides):
        if stride % align:
            yield f"global_stride of dim{i + 1} is {stride} bytes: must be a multiple of {align}"
    if t.interleave == 3:
        yield "interleave_layout has code 3: must be 0 (none), 1 (16B) or 2 (32B)"
    if t.interleave and t.rank < 3:
        yield f"interleave_layout needs rank 3 or more, the rank is {t.rank}"
    if t.interleave == 2 and t.swizzle != 1:
        yield f"interleave_layout 32B needs the 32B swizzle mode, not {SPANS[t.swizzle]}B"
    if t.atomicity and t.swizzle in (1, 2):
        yield (
            f"swizzle_atomicity {ATOMICITIES[t.atomicity]} needs the 128B swizzle mode, "
            f"not {SPANS[t.swizzle]}B"
        )
    if t.tf32 and t.format not in (7, 8):
        yield f"elemtype {element.name} cannot be rounded to tf32"
    if t.fill_nan and not element.floating:
        yield f"fill_mode NaN is for floating-point types only, not {element.name}"
    yield from _box_violations(t)


def _box_violations(t: TensorMap):
    if t.element.padded:
        if t.box[0] != 128:
            yield f"box_dim of dim0 is {t.box[0]}: must be 128 for {t.element.name}"
        if t.dims[0] % 128:
            yield f"global_dim of dim0 is {t.dims[0]}: {t.element.name} needs a multiple of 128"
        if t.swizzle in (1, 2):
            yield f"swizzle_mode {SPANS[t.swizzle]}B: must be none or 128B for {t.element.name}"
        return
    if t.format == 11 and t.dims[0] % 2:
        yield f"global_dim of dim0 is {t.dims[0]}: must be even for b4x16"
    nbytes, remainder = divmod(t.box[0] * t.element.bits, 8)
    if remainder or nbytes % 16:
        yield (
            f"box_dim of dim0 is {t.box[0]} elements of {t.element.bits} bits: "
            "its bytes must be a multiple of 16"
        )
    if t.swizzle and not t.interleave and nbytes > SPANS[t.swizzle]:
        yield (
            f"box_dim of dim0 is {t.box[0]} elements, {nbytes} bytes: "
            f"at most {SPANS[t.swizzle]} bytes fit the {SPANS[t.swizzle]}B swizzle mode"
        )


def tensormap_at(warp: Fragment, address: int) -> TensorMap:
    """The tensormap that an instruction's generic address points to."""
    if address % ALIGN:
        raise Fault(f"the tensormap's address {address:#x} is not a multiple of {ALIGN}")
    return decode(warp.machine.load_generic(warp, address, BYTES))
