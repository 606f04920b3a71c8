"""Instruction descriptors of tcgen05.mma: 32 bits of types, shape and layout (PTX ISA 9.7.16.4).

`decode(idesc, kind, cta_group, ws)` gives the fields after checking what hardware would reject:
element types, reserved bits, and the legal shapes of PTX ISA table 39.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from b200.errors import Fault, Unsupported

FP8_TYPES = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}


@dataclass(frozen=True, eq=False)
class Kind:
    """A `.kind::` of tcgen05.mma.

    types: type code -> number format of A and B; d_types: type code -> type of D.
    k: elements along K of one instruction; bits: of an element in shared memory.
    scaled: block-scaled.
    """

    name: str
    types: dict[int, str]
    d_types: dict[int, str]
    k: int
    bits: int
    scaled: bool = False


KINDS = {
    k.name: k
    for k in (
        Kind("f16", {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}, k=16, bits=16),
        Kind("tf32", {2: "tf32"}, {1: "f32"}, k=8, bits=32),
        Kind("f8f6f4", FP8_TYPES, {0: "f16", 1: "f32"}, k=32, bits=8),
        Kind("i8", {0: "u8", 1: "s8"}, {2: "s32"}, k=32, bits=8),
        Kind("mxf8f6f4", FP8_TYPES, {}, k=32, bits=8, scaled=True),
        Kind("mxf4", {1: "e2m1"}, {}, k=64, bits=4, scaled=True),
        Kind("mxf4nvf4", {1: "e2m1"}, {}, k=64, bits=4, scaled=True),
    )
}


@dataclass(frozen=True, eq=False)
class InstructionDescriptor:
    """Decoded fields: sizes in elements, types as number-format names. One object for each value.

    a_mn_major, b_mn_major: the "transpose" bits. sf_type: "ue4m3" or "ue8m0" of a block-scaled
    kind; sfa_id, sfb_id: byte of the 32-bit scale-factor word that the K-step starts with.
    """

    kind: Kind
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    saturate: bool
    sf_type: str | None = None
    sfa_id: int = 0
    sfb_id: int = 0


def _fault(idesc: int, kind: Kind, field: str, value: str | int, must: str) -> NoReturn:
    raise Fault(
        f"instruction descriptor {idesc:#010x} of kind::{kind.name}: {field} is {value}, {must}"
    )


def _choose(idesc: int, kind: Kind, field: str, code: int, table: dict[int, str]) -> str:
    if code not in table:
        legal = ", ".join(f"{c} ({name})" for c, name in table.items())
        _fault(idesc, kind, field, code, f"must be one of {legal}")
    return table[code]


@lru_cache(maxsize=4096)
def decode(
    idesc: int, kind_name: str, cta_group: int, ws: bool = False, vector: int = 0
) -> InstructionDescriptor:
    """Fields of an instruction descriptor.

    vector: K elements per scale factor (32 or 16) of a block-scaled kind.
    Raises Fault naming the field for a value that is reserved or not legal for the kind.
    """
    kind = KINDS[kind_name]
    if idesc >> 2 & 1:
        raise Unsupported(f"instruction descriptor {idesc:#010x}: sparse A (bit 2) is not modelled")
    scaled = _scale_fields(idesc, kind, vector) if kind.scaled else _plain_fields(idesc, kind)
    b_bits = 3 if kind.bits == 4 else 7  # bit 12 is no part of B's type in kind::mxf4*
    found = InstructionDescriptor(
        kind=kind,
        m=(idesc >> 24 & 0x1F) << 4,
        n=(idesc >> 17 & 0x3F) << 3,
        a_type=_choose(idesc, kind, "A type (bits 7-9)", idesc >> 7 & 7, kind.types),
        b_type=_choose(idesc, kind, "B type (from bit 10)", idesc >> 10 & b_bits, kind.types),
        negate_a=bool(idesc >> 13 & 1),
        negate_b=bool(idesc >> 14 & 1),
        a_mn_major=bool(idesc >> 15 & 1),
        b_mn_major=bool(idesc >> 16 & 1),
        **scaled,
    )
    if kind.bits == 4 and (found.a_mn_major or found.b_mn_major):
        _fault(idesc, kind, "transpose (bits 15-16)", idesc >> 15 & 3, "4-bit types are K-major")
    _check_shape(idesc, found, cta_group, ws)
    return found


Sizes = tuple[int, ...]


def _plain_fields(idesc: int, kind: Kind) -> dict[str, Any]:
    """Fields and reserved bits of table 42 (f16, tf32, f8f6f4, i8)."""
    for bit in (6, 23, 29):
        if idesc >> bit & 1:
            _fault(idesc, kind, f"reserved bit {bit}", 1, "must be 0")
    if idesc & 3:
        _fault(idesc, kind, "sparsity selector (bits 0-1)", idesc & 3, "must be 0 for dense A")
    if kind.name == "i8" and idesc >> 13 & 3:
        _fault(idesc, kind, "negate (bits 13-14)", idesc >> 13 & 3, "must be 0 for integers")
    if kind.name != "i8" and idesc >> 3 & 1:
        _fault(idesc, kind, "saturate (bit 3)", 1, "is for kind::i8 only")
    d_type = _choose(idesc, kind, "D type (bits 4-5)", idesc >> 4 & 3, kind.d_types)
    return {"d_type": d_type, "saturate": bool(idesc >> 3 & 1)}


def _scale_fields(idesc: int, kind: Kind, vector: int) -> dict[str, Any]:
    """Fields and reserved bits of tables 43 and 44 (block-scaled kinds)."""
    for bit in (0, 1, 3, 6, 24, 25, 26):
        if idesc >> bit & 1:
            _fault(idesc, kind, f"reserved bit {bit}", 1, "must be 0")
    if idesc >> 31:
        raise Unsupported(
            f"instruction descriptor {idesc:#010x} of kind::{kind.name}: bit 31 (K = 96) needs "
            "sm_103a; an sm_100a tensor core has K = 64"
        )
    ue8m0 = idesc >> 23 & 1
    if not ue8m0 and (kind.name != "mxf4nvf4" or vector == 32):
        _fault(idesc, kind, "scale type (bit 23)", "0 (UE4M3)", "must be 1 (UE8M0) here")
    sfa_id, sfb_id = idesc >> 29 & 3, idesc >> 4 & 3
    legal = (0, 1, 2, 3) if kind.bits == 8 else (0, 2) if vector == 32 else (0,)
    for name, value in (("SFA_ID (bits 29-30)", sfa_id), ("SFB_ID (bits 4-5)", sfb_id)):
        if value not in legal:
            _fault(idesc, kind, name, value, f"must be one of {legal} with block{vector}")
    sf_type = "ue8m0" if ue8m0 else "ue4m3"
    ids = {"sf_type": sf_type, "sfa_id": sfa_id, "sfb_id": sfb_id}
    return {"d_type": "f32", "saturate": False, **ids}


def _check_shape(idesc: int, d: InstructionDescriptor, cta_group: int, ws: bool) -> None:
    """Table 39: legal M and N for a kind and CTA group."""
    ms, ns = legal_shapes(d.kind.name, cta_group, ws)
    form = f"for kind::{d.kind.name}, cta_group::{cta_group}{', .ws' if ws else ''}"
    if d.m not in ms:
        _fault(idesc, d.kind, "M", d.m, f"must be one of {ms} {form}")
    if d.n not in ns:
        _fault(idesc, d.kind, "N", d.n, f"must be {_ranges(ns)} {form}")
    if d.b_mn_major and d.kind.bits == 8 and d.n % (16 * cta_group):
        _fault(
            idesc, d.kind, "N", d.n, f"must be a multiple of {16 * cta_group} for 8-bit MN-major B"
        )


@lru_cache(maxsize=64)
def legal_shapes(kind_name: str, cta_group: int, ws: bool = False) -> tuple[Sizes, Sizes]:
    """Legal M and legal N of a dense instruction, PTX ISA table 39, but for kind::i8 of a CTA pair:
    the table has multiples of 32 for N there, and a B200 runs multiples of 16 (SemiAnalysis
    microbench-blackwell, umma tables: S8, cta_group::2, N = 80 and 112).
    """
    if ws:
        return (32, 64, 128), (64, 128, 256)
    scaled = KINDS[kind_name].scaled
    ms = (128, 256) if cta_group == 2 else (128,) if scaled else (64, 128)
    step = 8 * cta_group
    ns = tuple(range(step, 257, step))
    if kind_name == "i8":
        ns = (*((8, 16, 24) if cta_group == 1 else ()), *range(32, 257, 16))
    return ms, ns


def _ranges(ns: Sizes) -> str:
    step = ns[-1] - ns[-2]
    if ns == tuple(range(ns[0], ns[-1] + 1, step)):
        return f"a multiple of {step} from {ns[0]} to {ns[-1]}"
    return f"one of {ns}"
