"""Places of loads and stores: where the lanes access memory, and what lies there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from b200.chip.memory.addressing import CVTA, GENERIC_GIVEN, no_shared_address
from b200.chip.memory.patterns import active_lanes, pattern_at, pattern_of
from b200.chip.state import OF_A_PEER
from b200.chip.unwritten import PATTERN
from b200.errors import Fault
from b200.hardware import OFFSET_MASK, RANK_SHIFT, SMEM_BASE
from b200.registry import FULL, LaneValues, active
from b200.spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


def spans(
    warp: Fragment,
    space: str,
    addresses: np.ndarray,
    which: list[int],
    nbytes: int,
    loads: bool = False,
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (memory bytes, offsets, lanes) groups of an access of `nbytes` by the lanes `which`,
    each checked for range and alignment. Most accesses are one group. loads: whether the access
    only reads; then it may reach beyond a tensor's end."""
    chosen = addresses[which].astype(np.int64)
    if (chosen % nbytes).any():
        bad = next(i for i in which if int(addresses[i]) % nbytes)
        raise Fault(
            f"lane {bad}: address {int(addresses[bad]):#x} is not aligned to the {nbytes} bytes of"
            " the access"
        )
    if space == "generic":
        for named, in_space, lanes_in in by_window(space, addresses, which):
            yield from spans(warp, named, in_space, lanes_in, nbytes, loads)
    elif space == "global" or space == "const":
        yield from _global_spans(warp, chosen, np.asarray(which), nbytes, loads)
    elif space.startswith("shared"):
        yield from _shared_spans(warp, chosen, np.asarray(which), nbytes, space)
    elif space == "local":
        memory = _local(warp)
        if (bad := np.flatnonzero((chosen < 0) | (chosen + nbytes > memory.shape[1]))).size:
            raise Fault(
                f"lane {which[bad[0]]}: local address {int(chosen[bad[0]]):#x} is outside its"
                f" {memory.shape[1]} bytes"
            )
        lane_at, at = np.asarray(which), chosen[:, None] + np.arange(nbytes)
        if loads and (memory[lane_at[:, None], at] == _unwritten(at)).all(1).any():
            warp.machine.undefined(
                "local memory is loaded that nothing has written",
                "a value for the variable or the element of the array",
                nobodys="local",
            )
        yield memory.reshape(-1), lane_at * memory.shape[1] + chosen, lane_at
    else:
        data = np.frombuffer(warp.params, np.uint8)
        if (chosen + nbytes > data.size).any():
            raise Fault(f"parameter access at offset {int(chosen.max())} of {data.size} bytes")
        yield data, chosen, np.asarray(which)


def _global_spans(warp: Fragment, chosen: np.ndarray, which: np.ndarray, nbytes: int, loads: bool):
    remaining = np.ones(chosen.size, bool)
    while remaining.any():
        first = int(np.argmax(remaining))
        if loads:
            chosen[first] = _load_address(warp, int(chosen[first]), nbytes)
        region = warp.machine.memory.region(int(chosen[first]), nbytes)
        inside = (chosen >= region.base) & (chosen + nbytes <= region.base + region.size)
        inside &= remaining
        yield region.u8, chosen[inside] - region.base, which[inside]
        remaining &= ~inside


def _load_address(warp: Fragment, address: int, nbytes: int) -> int:
    """Where a load reads: there, or in what stands for memory in no allocation."""
    at = warp.machine.memory.readable(address, nbytes, rounded=True)
    if at != address:
        warp.machine.undefined(
            f"{nbytes} bytes at {address:#x} are loaded {warp.machine.memory.region(at).name}",
            "a guard for what is not there; here all ones are read",
            nobodys="behind",
        )
    return at


def _in_32_bits(warp: Fragment, chosen: np.ndarray) -> np.ndarray:
    """Shared addresses, of which some have more than 32 bits (see addressing.shared_address)."""
    window = (chosen ^ SHARED_WINDOW) >> 32
    if (other := chosen[(window != 0) & (chosen >> 32 != 0)]).size:
        raise Fault(no_shared_address(int(other[0])))
    warp.machine.undefined(GENERIC_GIVEN, CVTA)
    return chosen & FULL


def _shared_spans(warp: Fragment, chosen: np.ndarray, which: np.ndarray, nbytes: int, space: str):
    if (chosen >> 32).any():
        chosen = _in_32_bits(warp, chosen)
    ranks = chosen >> RANK_SHIFT
    cta = me = warp.cta
    for rank in np.unique(ranks):
        inside = ranks == rank
        if space == "shared::cluster":
            cta, _ = me.cluster.locate(int(chosen[inside][0]), nbytes)
        elif rank not in (0, me.rank):
            raise Fault(
                f"shared::cta access at {int(chosen[0]):#x}, an address of CTA rank"
                f" {int(rank)}, from rank {me.rank}{OF_A_PEER}"
            )
        at = chosen[inside] & OFFSET_MASK
        cta.check(int(at.min()), nbytes)
        cta.check(int(at.max()), nbytes)
        yield cta.smem.u8, at, which[inside]


def by_window(
    space: str, addresses: np.ndarray, which: list[int]
) -> Iterator[tuple[str, np.ndarray, list[int]]]:
    """The lanes of an access by the state space of each address: yields (space,
    addresses in it, lanes). Addresses of another space than "generic" are all in that space.
    """
    if space != "generic":
        yield space, addresses, which
        return
    windows = addresses.astype(np.uint64) & np.uint64(FULL64 ^ WINDOW_MASK)
    in_space = addresses.astype(np.uint64) & np.uint64(WINDOW_MASK)
    for window in np.unique(windows[which]):
        lanes_in = [i for i in which if windows[i] == window]
        named = SPACES.get(int(window))
        if named is None:
            raise Fault(f"generic address {int(addresses[lanes_in[0]]):#x} is in no state space")
        yield named, in_space, lanes_in


FULL64 = (1 << 64) - 1
BYTES = PATTERN.view(np.uint8)
TYPED = ("u8", "u16", "u32", "u64", "u128")  # a Region as items of 1, 2, 4, 8 and 16 bytes
SPACES = {0: "global", SHARED_WINDOW: "shared::cluster", LOCAL_WINDOW: "local"}
SPACES[PARAM_WINDOW] = "param"


def _local(warp: Fragment) -> np.ndarray:
    """Local memory of the warp: uint8 [32 lanes, bytes]."""
    if warp.state.local is None:
        size, byte = -(-warp.machine.code.local_bytes // 16) * 16, warp.machine.unwritten_local
        row = _unwritten(np.arange(size)) if byte is None else np.full(size, byte, np.uint8)
        warp.state.local = np.tile(row, (32, 1))
    return warp.state.local


def _unwritten(at: np.ndarray) -> np.ndarray:
    """The bytes at places of local memory that nothing has written: the pattern of global memory.
    What holds it by chance is judged by a second run, too.
    """
    return BYTES[at % BYTES.size]


def address_array(address: LaneValues) -> np.ndarray:
    return address if isinstance(address, np.ndarray) else np.full(32, address, np.uint64)


def one_span(
    warp: Fragment, mask: int, space: str, address: np.ndarray, nbytes: int, size: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """(memory as elements of `size` bytes, index [elements of a lane, 32]) of an aligned access
    inside one allocation, else None: `spans` then says what is wrong or splits the access. Inactive
    lanes have the index of the lowest active one.
    """
    if space == "shared":
        first, pattern = 0, pattern_at(mask, address.tobytes(), address.itemsize, nbytes, size)
    else:
        first, pattern = pattern_of(mask, address, nbytes, size)
    if pattern is None:
        return None
    low, high = first + pattern.low, first + pattern.high
    if space == "generic":
        window = low & ~WINDOW_MASK
        if high - 1 & ~WINDOW_MASK != window or window not in (0, SHARED_WINDOW):
            return None
        space = "shared::cluster" if window else "global"
        low, high, first = low - window, high - window, first - window
    if space.startswith("shared"):
        rank, cta = low >> RANK_SHIFT, warp.cta
        if space == "shared::cluster" and rank != cta.rank and rank < len(cta.cluster.ctas):
            cta = cta.cluster.ctas[rank]
        elif rank not in (0, cta.rank):
            return None
        base = rank << RANK_SHIFT
        if low < base + SMEM_BASE or high > base + cta.smem_end:
            return None
        region = cta.smem
    elif space == "global":
        region = warp.machine.memory.find(low, high - low)
        if region is None or region.base % size:
            return None
        base = region.base
    else:
        return None
    shift = size.bit_length() - 1
    typed = getattr(region, TYPED[shift])
    return typed, pattern.elements + (first - base >> shift) if first != base else pattern.elements


def read_columns(
    warp: Fragment, mask: int, space: str, address: np.ndarray, n: int, dtype: DTypeLike
) -> list[np.ndarray]:
    """n neighbouring elements of each lane: n arrays of 32, undefined in inactive lanes."""
    size = np.dtype(dtype).itemsize
    found = one_span(warp, mask, space, address, n * size, size)
    if found is None:
        got = _read(warp, mask, space, address, n * size, dtype)
        return [np.ascontiguousarray(got[:, i]) for i in range(n)]
    typed, index = found
    return list(typed[index])


def write_columns(
    warp: Fragment, mask: int, space: str, address: np.ndarray, columns: list[np.ndarray]
) -> None:
    """Write neighbouring elements of each active lane. columns: for each element an array of 32."""
    size = columns[0].itemsize
    found = one_span(warp, mask, space, address, len(columns) * size, size)
    if found is None:
        _write(warp, mask, space, address, np.stack(columns, 1))
        return
    typed, index = found
    values = columns[0][None] if len(columns) == 1 else np.array(columns)
    if mask != FULL:
        chosen = active_lanes(mask)
        index, values = index[:, chosen], values[:, chosen]
    typed[index] = values


def _read(
    warp: Fragment, mask: int, space: str, address: LaneValues, nbytes: int, dtype: DTypeLike
) -> np.ndarray:
    """[32, nbytes / itemsize] elements; inactive lanes read 0."""
    width = nbytes // np.dtype(dtype).itemsize
    out = np.zeros((32, width), dtype)
    addresses = address_array(address)
    for data, offsets, which in spans(warp, space, addresses, active(mask), nbytes, loads=True):
        out[which] = _gather(data, offsets, nbytes, dtype)
    return out


def _gather(data: np.ndarray, offsets: np.ndarray, nbytes: int, dtype: DTypeLike) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    if data.ctypes.data % size == 0:
        typed = data[: data.size // size * size].view(dtype)
        return typed[(offsets // size)[:, None] + np.arange(nbytes // size)]
    return data[offsets[:, None] + np.arange(nbytes)].view(dtype)


def _write(warp: Fragment, mask: int, space: str, address: np.ndarray, values: np.ndarray) -> None:
    """Write [32, n] elements of the active lanes."""
    size, nbytes = values.dtype.itemsize, values.shape[1] * values.dtype.itemsize
    for data, offsets, which in spans(warp, space, address_array(address), active(mask), nbytes):
        if data.ctypes.data % size == 0:
            typed = data[: data.size // size * size].view(values.dtype)
            typed[(offsets // size)[:, None] + np.arange(values.shape[1])] = values[which]
        else:
            given = np.ascontiguousarray(values[which])
            data[offsets[:, None] + np.arange(nbytes)] = given.view(np.uint8)


def scalar_bytes(warp: Fragment, space: str, address: int, nbytes: int) -> Any:
    """Bytes at an address that all lanes share."""
    if space == "global" or space == "generic" and address <= WINDOW_MASK:
        address = _load_address(warp, address, nbytes)
        region = warp.machine.memory.region(address, nbytes)
        if address % nbytes == 0:
            return region.mem[address - region.base : address - region.base + nbytes]
    return _read(warp, 1, space, address, nbytes, np.uint8)[0].tobytes()
