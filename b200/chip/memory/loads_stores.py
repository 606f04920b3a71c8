"""ld, st and similar instructions on all state spaces and generic addresses (PTX ISA 9.7.9).

Qualifiers of cache, eviction, ordering and scope are accepted. They change nothing in a machine
that executes one instruction at a time. The lanes of one store are written lowest first: if several
lanes write one address, the highest lane wins (PTX leaves it open which).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.memory.places import FULL64, address_array, read_columns, scalar_bytes, write_columns
from b200.effects import Discards, Hints, Loads, Stores
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import TYPE_BITS, Instr, Operand, Vec
from b200.registry import DTYPES, LaneValues, Run, lanes, no_effect, warp
from b200.spaces import LOCAL_WINDOW, WINDOW_MASK

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

SPACES = ("global", "shared", "local", "param", "const")
ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio")
SCOPES = {**{scope: scope for scope in ("cta", "cluster", "gpu", "sys")}, "gl": "gpu"}
PRIORITIES = ("evict_first", "evict_last", "no_allocate")
UNCACHED = ("L1::no_allocate", "cg", "cv", "volatile", "relaxed", "acquire")


def space_of(ins: Instr) -> str:
    """The state space of the address operand; "generic" if the opcode has none."""
    for mod in ins.mods[1:]:
        name = mod.split("::")[0]
        if name in SPACES:
            return "shared::cluster" if mod == "shared::cluster" else name
    return "generic"


# --- effects --------------------------------------------------------------------------------------


def order_of(ins: Instr, default: str) -> str:
    """The memory order of an instruction; `default` if it names none."""
    return next((m for m in ins.mods if m in ORDERS), default)


def memory_scope(ins: Instr) -> str:
    """The scope of an instruction: "cta", "cluster", "gpu" or "sys"; "" if it names none."""
    return next((SCOPES[m] for m in ins.mods[1:] if m in SCOPES), "")


def policies_of(ins: Instr, *levels: str) -> frozenset[str]:
    """The priorities that an instruction asks of the caches."""
    return frozenset(p for p in PRIORITIES if ins.has(*(f"{level}::{p}" for level in levels)))


def _elements(data: Operand) -> int:
    return len(data.items) if isinstance(data, Vec) else 1


def _loads(ins: Instr) -> Loads:
    bits, space = TYPE_BITS[ins.types[-1]], space_of(ins)
    policies = policies_of(ins, "L1", "L2")
    return Loads(
        pipe="nothing" if space in ("param", "const") else "issue",
        order=order_of(ins, "weak"),
        scope=memory_scope(ins),
        space=space,
        nbytes=_elements(ins.operands[0]) * bits // 8,
        bits=bits,
        cached=not ins.has(*UNCACHED),
        policies=policies | {"evict_first"} if ins.has("cs") else policies,  # likely read once
        constant=ins.has("nc"),
    )


def _stores(ins: Instr) -> Stores:
    bits = TYPE_BITS[ins.types[-1]]
    return Stores(
        order=order_of(ins, "weak"),
        scope=memory_scope(ins),
        space=space_of(ins),
        nbytes=_elements(ins.operands[1]) * bits // 8,
        bits=bits,
        policies=policies_of(ins, "L2"),  # the L1 keeps no stores
    )


def _hints(ins: Instr) -> Hints:
    pipe = "hint" if ins.mods[0] == "prefetch" else "issue"
    return Hints(pipe=pipe, policies=policies_of(ins, "L2"))


def halves(value: LaneValues) -> tuple[LaneValues, LaneValues]:
    """The low and the high 64 bits of a 128-bit register, an int or an array of ints."""
    if isinstance(value, np.ndarray):
        return (value & FULL64).astype(np.uint64), (value >> 64).astype(np.uint64)
    return value & FULL64, value >> 64


def joined(columns: Iterable[np.ndarray]) -> np.ndarray:
    """A 128-bit register of its low and high 64 bits: Python ints, since numpy has no such type."""
    low, high = columns
    return low.astype(object) | high.astype(object) << 64


def extended(values: np.ndarray, kind: str, width: int) -> np.ndarray:
    if kind[0] == "s" and TYPE_BITS[kind] < width:
        return values.view(f"i{TYPE_BITS[kind] // 8}").astype(f"i{width // 8}").view(DTYPES[width])
    return values.astype(DTYPES[width], copy=False)


@warp("ld", "ldu", states=_loads, out=1, uniform="args")
def load(ins: Instr) -> Run:
    """ld{.qualifiers}{.space}{.v2|.v4|.v8}.type d, [a]{, cache policy}"""
    kind, space = ins.types[-1], space_of(ins)
    dst = ins.operands[0]
    items = dst.items if isinstance(dst, Vec) else (dst,)
    n, dtype = len(items), DTYPES.get(TYPE_BITS[kind])
    nbytes = n * TYPE_BITS[kind] // 8
    widths = [TYPE_BITS.get(r.type, 32) if r is not None else TYPE_BITS[kind] for r in items]
    signed = kind[0] == "s"
    size = TYPE_BITS[kind] // 8

    def scalar(warp: Fragment, address: int):
        """All lanes read one address."""
        if space == "shared" and address >> RANK_SHIFT in (0, warp.cta.rank):
            at = warp.cta.check(address & OFFSET_MASK, nbytes, nbytes)
            raw = warp.cta.smem.mem[at : at + nbytes]
        else:
            raw = scalar_bytes(warp, space, address, nbytes)
        values: list[int] = []
        for i, width in enumerate(widths):
            value = int.from_bytes(raw[i * size : (i + 1) * size], "little", signed=signed)
            values.append(value & ((1 << width) - 1))
        return tuple(values) if isinstance(dst, Vec) else values[0]

    def run(warp: Fragment, mask: int, address: LaneValues, policy: LaneValues | None = None):
        if not isinstance(address, np.ndarray):
            if space != "local" and address & ~WINDOW_MASK != LOCAL_WINDOW:
                return scalar(warp, address)
            address = address_array(address)
        if dtype is None:
            return joined(read_columns(warp, mask, space, address, 2, np.uint64))
        columns = read_columns(warp, mask, space, address, n, dtype)
        if not isinstance(dst, Vec):
            return extended(columns[0], kind, widths[0])
        return tuple(extended(c, kind, w) for c, w in zip(columns, widths, strict=True))

    return run


@warp("st", states=_stores)
def store(ins: Instr) -> Run:
    """st{.qualifiers}{.space}{.v2|.v4|.v8}.type [a], b{, cache policy}"""
    kind, space = ins.types[-1], space_of(ins)
    dtype = DTYPES[min(TYPE_BITS[kind], 64)]

    def run(
        warp: Fragment,
        mask: int,
        address: LaneValues,
        value: LaneValues | tuple[LaneValues, ...],
        policy: LaneValues | None = None,
    ) -> None:
        items = value if isinstance(value, tuple) else (value,)
        if kind == "b128":
            items = halves(items[0])
        columns = [lanes(x, dtype) for x in items]
        write_columns(warp, mask, space, address_array(address), columns)

    return run


@warp("prefetch", "prefetchu", "applypriority", states=_hints)
def prefetch(ins: Instr) -> Run:
    """prefetch and similar hints about caches: they have no architectural effect."""
    return no_effect


@warp("discard", states=Discards())
def discard(ins: Instr) -> Run:
    """discard{.global}.L2 [a], 128: what is read there afterwards is undefined; here it stays."""
    return no_effect
