"""tcgen05.mma and tcgen05.commit (PTX ISA 9.7.16.10, 9.7.16.12).

    tcgen05.mma.cta_group.kind             [d], a, b-desc, idesc, {disable-lanes}?, enable-d{, s}
    tcgen05.mma.cta_group.kind.block_scale [d], a, b-desc, idesc, [sfa], [sfb], enable-d
    tcgen05.mma.ws.cta_group::1.kind       [d], a, b-desc, idesc, enable-d{, zero-column-mask}

where a is a descriptor or [tensor-memory address]. The emulator reads A and B from memory, whatever
the collector buffers hold. A pair (cta_group::2) reads the same descriptors in both CTAs: each
gives half of the rows of A and of B, and keeps its half of the rows of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.memory.addressing import issuer, resolver, space_of
from b200.chip.operations import Commit, Mma
from b200.chip.state import CTA
from b200.chip.sync.mbarrier import mbarrier_at
from b200.chip.tensor import mma_operands as operands
from b200.chip.tensor import tensor_core
from b200.chip.tensor.instruction_descriptor import KINDS, InstructionDescriptor, decode
from b200.chip.tensor.mma_operands import ScaleFactors, TensorOperand
from b200.chip.tensor.running_sum import RunningSum
from b200.chip.tensor.tmem import shift_down, split
from b200.chip.tensor.tmem_alloc import group_of
from b200.chip.tensor.zero_columns import ZeroColumns
from b200.effects import Commits, Multiplies
from b200.errors import Fault
from b200.hardware import OFFSET_MASK, TMEM_LANES
from b200.program.module import Addr, Instr, Vec
from b200.registry import Run, lane

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

VECTORS = {"block16": 16, "scale_vec::4X": 16}  # of other names: 32
SF_ADDRESS = 0x3FFFFFFF  # bits 30-31 of a scale-factor address repeat the id of the descriptor


@dataclass(frozen=True, eq=False)
class MmaForm:
    """The static part of a tcgen05.mma: what the opcode and the operand list say.

    vector: K elements of a scale factor, 0 without block scaling; masked: has a
    disable-output-lane vector.
    """

    opcode: str
    kind: str
    cta_group: int
    ws: bool
    vector: int
    a_in_tmem: bool
    masked: bool
    shift_a: bool


def _form(ins: Instr) -> MmaForm:
    kind = next(m[6:] for m in ins.mods if m.startswith("kind::"))
    return MmaForm(
        opcode=ins.opcode,
        kind=kind,
        cta_group=group_of(ins),
        ws=ins.has("ws"),
        vector=VECTORS.get(ins.one(*VECTORS), 32) if KINDS[kind].scaled else 0,
        a_in_tmem=isinstance(ins.operands[1], Addr),
        masked=len(ins.operands) > 4 and isinstance(ins.operands[4], Vec),
        shift_a=ins.has("ashift"),
    )


@dataclass(frozen=True, eq=False)
class DecodedMma:
    """One tcgen05.mma with its operands decoded, to be carried out in a CTA or a pair.

    disabled: lanes of D that keep their value, bool [128] for each CTA.
    """

    d: InstructionDescriptor
    a: operands.SharedOperand | TensorOperand
    b: operands.SharedOperand
    acc: operands.Accumulator
    accumulate: bool
    sfa: ScaleFactors | None = None
    sfb: ScaleFactors | None = None
    scale_d: int = 0
    disabled: tuple[np.ndarray, ...] | None = None
    zero: ZeroColumns | None = None
    shift_a: bool = False

    @property
    def a_in_tmem(self) -> bool:
        return isinstance(self.a, TensorOperand)

    def check(self, ctas: tuple[CTA, ...]) -> None:
        """Raise Fault if a part of an operand lies where the CTAs have no memory."""
        for cta in ctas:
            if self in cta.legal:
                continue
            self.a.check(cta)
            self.b.check(cta)
            self.acc.check(cta)
            for scales in (self.sfa, self.sfb):
                if scales is not None:
                    scales.check(cta)
            cta.legal.add(self)

    def apply(self, ctas: tuple[CTA, ...]) -> None:
        """Carry the instruction out. ctas: the CTA, or the pair with the even CTA first."""
        running = self._running_sum(ctas) if self.d.kind.bits == 4 else None
        if running is not None:
            self._step(ctas, running)
        else:
            self._at_once(ctas)

    def _running_sum(self, ctas: tuple[CTA, ...]) -> RunningSum | None:
        """Where the step is added up; None if in tensor memory (chip/tensor/running_sum.py)."""
        found = next((s for s in ctas[0].sums if s.acc is self.acc and s.members == ctas), None)
        if self.disabled is not None or self.shift_a:
            return None
        if self.accumulate:
            return found if found is not None and found.takes(self) else None
        if found is not None:
            found.drop()
        return RunningSum(ctas, self)

    def _step(self, ctas: tuple[CTA, ...], running: RunningSum) -> None:
        """Add the step to its sum."""
        assert self.sfa is not None and self.sfb is not None
        sfa = [self.sfa.fours(cta) for cta in ctas]
        sfb, *others = (self.sfb.fours(cta) for cta in ctas)
        if any(other != sfb for other in others):
            running.settle()
            self._at_once(ctas)
            return
        a, b = ([operand.raw(cta) for cta in ctas] for operand in (self.a, self.b))
        running.add(a, sfa, b, sfb)

    def _at_once(self, ctas: tuple[CTA, ...]) -> None:
        """Carry it out in tensor memory."""
        b = self._b(ctas)
        for i, cta in enumerate(ctas):
            disabled = None if self.disabled is None else self.disabled[i]
            self.acc.write(cta, self._cells(cta, b), disabled)
            if self.shift_a:
                assert isinstance(self.a, TensorOperand)
                shift_down(cta, *split(self.a.taddr))

    def _b(self, ctas: tuple[CTA, ...]) -> np.ndarray:
        """B with all its rows: packed bytes of 4-bit kinds, values of the others."""
        read = self.b.raw if self.d.kind.bits == 4 else self.b.values
        parts = [read(cta) for cta in ctas]
        b = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return b if self.zero is None else self.zero.apply(b)

    def _cells(self, cta: CTA, b: np.ndarray) -> np.ndarray:
        d = self.d
        cells = self.acc.read(cta) if self.accumulate else None
        negate = d.negate_a != d.negate_b
        if d.kind.bits == 4:
            assert d.sf_type is not None
            sfa, sfb = self._scales(self.sfa, cta), self._scales(self.sfb, cta)
            a = self.a.raw(cta)
            return tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells, d.sf_type, negate)
        a = self.a.values(cta)
        if d.kind.name == "i8":
            return tensor_core.multiply_integers(a, b, cells, d.saturate)
        left = self._operand(-a if negate else a, d.a_type, cta, self.sfa)
        right = self._operand(b, d.b_type, cta, self.sfb)
        return tensor_core.multiply(left, right, cells, d.d_type, self.scale_d)

    @staticmethod
    def _scales(scales: ScaleFactors | None, cta: CTA) -> np.ndarray:
        """Codes of a 4-bit kind, uint8 [rows, 4], one for each 16 elements."""
        assert scales is not None
        found = scales.read(cta)
        return found.repeat(2, axis=1) if scales.count == 2 else found

    def _operand(
        self, values: np.ndarray, fmt: str, cta: CTA, sf: ScaleFactors | None
    ) -> tensor_core.AlignedOperand:
        if sf is None:
            return tensor_core.AlignedOperand(values, tensor_core.LEAST[fmt])
        return tensor_core.with_ue8m0(values, fmt, sf.read(cta)[:, 0])


@lru_cache(maxsize=1 << 14)
def _decoded(form: MmaForm, args: tuple[Any, ...]) -> DecodedMma:
    """Decode the operands of a tcgen05.mma: loops come back to the same ones."""
    d_taddr, a, b, idesc, *rest = args
    d = decode(idesc, form.kind, form.cta_group, form.ws, form.vector)
    fields: dict[str, Any] = {"shift_a": form.shift_a}
    if form.vector:
        fields |= _scale_operands(form, d, rest.pop(0), rest.pop(0))
    if form.masked:
        fields["disabled"] = _disabled(rest.pop(0), form.cta_group)
    accumulate = bool(rest.pop(0))
    if rest and form.ws:
        fields["zero"] = ZeroColumns.decode(rest[0], d.m, d.n)
    elif rest:
        fields["scale_d"] = _scale_d(rest[0], form)
    rows_a, rows_b = d.m // form.cta_group, d.n // form.cta_group
    if (zero := fields.get("zero")) is not None:
        rows_b += zero.shift
    in_smem = operands.shared_operand
    return DecodedMma(
        d=d,
        a=_tensor_a(form, d, a) if form.a_in_tmem else in_smem("A", a, d, rows_a),
        b=in_smem("B", b, d, rows_b),
        acc=operands.accumulator(d_taddr, d.m, d.n, form.cta_group, form.ws),
        accumulate=accumulate,
        **fields,
    )


def _tensor_a(form: MmaForm, d: InstructionDescriptor, taddr: int) -> TensorOperand:
    if d.a_mn_major:
        raise Fault(
            f"{form.opcode}: A in tensor memory is K-major, but bit 15 (transpose A) is set"
        )
    if form.shift_a and d.m // form.cta_group != 128:
        raise Fault(f"{form.opcode}: .ashift needs M = 128 or 256, M is {d.m}")
    rows = d.m // form.cta_group
    copies = 2 if form.cta_group == 2 and rows == 64 else 1
    half = rows == 64 and form.cta_group == 1 and not form.ws
    return TensorOperand(taddr, rows, half, copies, d.kind.bits, d.a_type)


def _scale_operands(
    form: MmaForm, d: InstructionDescriptor, sfa: int, sfb: int
) -> dict[str, ScaleFactors]:
    count = d.kind.k // form.vector
    two_by_two = form.cta_group == 2 and d.m == 128
    columns: list[int] = []
    for name, taddr in (("A", sfa), ("B", sfb)):
        row, column = split(taddr & SF_ADDRESS)
        if row:
            raise Fault(
                f"scale factors of {name} at tensor-memory address {taddr:#010x}: lane {row}, must"
                " be 0"
            )
        columns.append(column)
    return {
        "sfa": ScaleFactors("A", columns[0], d.m // form.cta_group, d.sfa_id, count),
        "sfb": ScaleFactors("B", columns[1], d.n, d.sfb_id, count, 2 if two_by_two else 4),
    }


def _disabled(words: tuple[int, ...], cta_group: int) -> tuple[np.ndarray, ...]:
    """Lanes whose D is kept, of each CTA (the even CTA's words first; reading chosen)."""
    if len(words) != 4 * cta_group:
        raise Fault(
            f"disable-output-lane has {len(words)} registers: cta_group::{cta_group} needs "
            f"{4 * cta_group}"
        )
    bits = np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little").view(bool)
    return tuple(bits.reshape(cta_group, TMEM_LANES))


def _scale_d(value: int, form: MmaForm) -> int:
    if form.kind not in ("f16", "tf32") or not 0 <= value <= 15:
        raise Fault(
            f"{form.opcode}: scale-input-d is {value}, must be 0..15, kinds f16 and tf32 only"
        )
    return value


def _multiplies(ins: Instr) -> Multiplies:
    """PTX ISA 9.7.16.10.9 has the collector buffers."""
    default = "collector::b0::discard" if ins.has("ws") else "collector::a::discard"
    collector = next((mod for mod in ins.mods if mod.startswith("collector::")), default)
    _, buffer, usage = collector.split("::")
    return Multiplies(pair=group_of(ins) == 2, buffer=buffer, usage=usage)


@lane("tcgen05.mma", "tcgen05.mma.ws", states=_multiplies)
def tcgen05_mma(ins: Instr) -> Run:
    form = _form(ins)
    if form.shift_a and not form.a_in_tmem:
        raise Fault(f"{ins.opcode}: .ashift needs A in tensor memory")
    pair = form.cta_group == 2

    def run(warp: Fragment, lane: int, *args: Any) -> None:
        decoded = _decoded(form, args)
        ctas = warp.cta.pair if pair else (warp.cta,)
        decoded.check(ctas)

        def apply() -> None:
            decoded.apply(ctas)

        warp.machine.issue(Mma(ctas, decoded), warp, apply)

    return run


def _commits(ins: Instr) -> Commits:
    return Commits(pair=group_of(ins) == 2, multicast=ins.has("multicast::cluster"))


@lane("tcgen05.commit", states=_commits)
def tcgen05_commit(ins: Instr) -> Run:
    """tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64
    [mbar]{, ctaMask}: arrives once when all earlier tcgen05.mma, cp and shift of this thread are
    done; with a mask, on the barrier at that offset of every CTA in it.
    """
    locate = resolver(space_of(ins))
    pair = group_of(ins) == 2

    def run(warp: Fragment, lane: int, address: int, cta_mask: int | None = None) -> None:
        cta, at = locate(warp, address, 8, 8)
        targets, offset = (cta,), at & OFFSET_MASK
        if cta_mask is not None:
            targets = _targets(warp.cta, cta_mask & 0xFFFF)
        members = warp.cta.pair if pair else (warp.cta,)
        who = issuer(warp, ins, "tcgen05.commit")

        def apply() -> None:
            for target in targets:
                mbarrier_at(target, offset).arrive(1, who)

        warp.machine.issue(Commit(members, targets, offset), warp, apply)

    return run


def _targets(cta: CTA, mask: int) -> tuple[CTA, ...]:
    ctas = cta.cluster.ctas
    if mask >> len(ctas):
        raise Fault(f"tcgen05.commit with CTA mask {mask:#06x}: the cluster has {len(ctas)} CTA(s)")
    return tuple(ctas[rank] for rank in range(len(ctas)) if mask >> rank & 1)
