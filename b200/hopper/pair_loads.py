"""TMA loads with `.cta_group::2` where only loads are measured: nothing waits that does not on a
B200.

On a B200 such a load may signal a barrier of the other CTA of the pair, on Hopper one of a CTA
that it writes to. Here the bytes that it writes to the other CTA's side are told that CTA's barrier
at once; those that land where the barrier is are told by the load itself, as on a B200. So a stage
counts as full when the half of the CTA that waits has landed: both halves were asked for together,
and are as large. Bytes that land unannounced are counted by an mbarrier of the warp, which waits
for them before it exits, or, of a multicast, taken off again by the barrier that the load signals.
"""

from __future__ import annotations

import re

from b200.hopper.byte_tensormaps import LaunchFacts
from b200.hopper.errors import HopperError
from b200.hopper.statements import Block, Statement, closing

RANK_BIT = 24  # of a shared::cluster address, the lowest of its CTA's rank
BEHIND = 256  # bytes of shared memory behind the kernel's own: an mbarrier a warp
_EXPECT = "mbarrier.expect_tx.relaxed.{}.b64"
_COMPLETE = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64"


def fact(block: Block, facts: LaunchFacts, map_: str, which: int) -> str:
    """A 32-bit operand with a fact number `which` (LaunchFacts.maps) of the map at an address."""
    steps = facts.steps(which)
    if not steps:
        raise HopperError("unsupported", "tensor copies, and no tensormap among the parameters")
    if len(steps) == 1:
        return str(steps[0][1])
    base, wide, offset, found = (block.register(k) for k in ("b64", "b64", "b32", "b32"))
    block.emit(f"mov.b64 {base}, {facts.first}")
    block.emit(f"cvta.param.u64 {base}, {base}")
    block.emit(f"sub.s64 {wide}, {map_}, {base}")
    block.emit(f"cvt.u32.u64 {offset}, {wide}")
    block.emit(f"mov.b32 {found}, {steps[0][1]}")
    for at, value in steps[1:]:
        behind = block.register("pred")
        block.emit(f"setp.ge.u32 {behind}, {offset}, {at}")
        block.emit(f"selp.b32 {found}, {value}, {found}, {behind}")
    return found


def write(
    s: Statement, block: Block, opcode: str, operands: list[str], facts: LaunchFacts, map_: str
) -> None:
    """The load, and what it tells whom. opcode, operands: without `.cta_group`."""
    nbytes = fact(block, facts, map_, 2)
    barrier, parity = block.address(operands[2]), block.register("b32")
    other = block.register("pred")  # the barrier is the other CTA's
    block.emit(f"xor.b32 {parity}, {barrier}, hopper_rank_bit")
    block.emit(f"and.b32 {parity}, {parity}, {1 << RANK_BIT}")
    block.emit(f"setp.ne.u32 {other}, {parity}, 0")
    signalled = block.register("b32")
    if s.has("multicast::cluster"):
        block.emit(f"xor.b32 {signalled}, {barrier}, {parity}")
        _tell_pairs(block, facts.cluster, block.as_32(operands[3]), signalled, barrier, nbytes)
    else:
        block.emit(f"selp.b32 {signalled}, hopper_own, {barrier}, {other}")
        block.emit(f"@{other} {_EXPECT.format('cta.shared::cta')} [hopper_own], {nbytes}")
        block.emit(f"@{other} {_COMPLETE} [{barrier}], {nbytes}")
    block.emit(f"{opcode} {', '.join([*operands[:2], f'[{signalled}]', *operands[3:]])}")


def _tell_pairs(block: Block, cluster: int, mask: str, own: str, barrier: str, nbytes: str) -> None:
    """For each CTA that a multicast writes to and whose barrier is that of its pair's other CTA."""
    bit, side = block.register("b32"), block.register("b32")
    chosen, wrong = block.register("pred"), block.register("pred")
    there, told = block.register("b32"), block.register("b32")
    block.emit(f"shr.u32 {side}, {barrier}, {RANK_BIT}")
    block.emit(f"and.b32 {side}, {side}, 1")
    for rank in range(cluster):
        block.emit(f"and.b32 {bit}, {mask}, {1 << rank}")
        block.emit(f"setp.ne.u32 {chosen}, {bit}, 0")
        block.emit(f"setp.ne.and.u32 {wrong}, {side}, {rank & 1}, {chosen}")
        block.emit(f"@{wrong} mapa.shared::cluster.u32 {there}, {own}, {rank}")
        block.emit(f"@{wrong} mapa.shared::cluster.u32 {told}, {own}, {rank ^ 1}")
        block.emit(f"@{wrong} {_EXPECT.format('cluster.shared::cluster')} [{there}], {nbytes}")
        block.emit(f"@{wrong} {_COMPLETE} [{told}], {nbytes}")


_BEGIN = """
	.reg .b32 hopper_own, hopper_rank_bit, hopper_t, hopper_n;
	.reg .pred hopper_p;
	mov.u32 hopper_t, %tid.z;
	mov.u32 hopper_n, %ntid.y;
	mul.lo.u32 hopper_t, hopper_t, hopper_n;
	mov.u32 hopper_n, %tid.y;
	add.u32 hopper_t, hopper_t, hopper_n;
	mov.u32 hopper_n, %ntid.x;
	mul.lo.u32 hopper_t, hopper_t, hopper_n;
	mov.u32 hopper_n, %tid.x;
	add.u32 hopper_t, hopper_t, hopper_n;
	shr.u32 hopper_t, hopper_t, 5;
	shl.b32 hopper_t, hopper_t, 3;
	mov.u32 hopper_own, {dynamic};
	mov.u32 hopper_n, %dynamic_smem_size;
	add.u32 hopper_own, hopper_own, hopper_n;
	add.u32 hopper_own, hopper_own, hopper_t;
	sub.u32 hopper_own, hopper_own, {behind};
	mov.u32 hopper_rank_bit, %cluster_ctarank;
	shl.b32 hopper_rank_bit, hopper_rank_bit, {bit};
	mov.u32 hopper_t, %laneid;
	setp.ne.u32 hopper_p, hopper_t, 0;
	@hopper_p bra HOPPER_BEGIN;
	mbarrier.init.shared.b64 [hopper_own], 1;
	fence.mbarrier_init.release.cluster;
HOPPER_BEGIN:
	bar.warp.sync 0xffffffff;
"""
_END = """
HOPPER_END:
	mov.u32 hopper_t, %laneid;
	setp.ne.u32 hopper_p, hopper_t, 0;
	@hopper_p bra HOPPER_ENDED;
	mbarrier.arrive.shared.b64 _, [hopper_own];
HOPPER_LANDED:
	mbarrier.try_wait.parity.shared.b64 hopper_p, [hopper_own], 0;
	@!hopper_p bra HOPPER_LANDED;
HOPPER_ENDED:
	ret;
"""


def framed(text: str, dynamic: str) -> str:
    """The one kernel of a module with a beginning that makes each warp's mbarrier, and an end that
    waits for it. dynamic: the symbol of dynamic shared memory.
    """
    entry = re.search(r"\.entry\s+[\w$]+", text)
    if entry is None:
        raise HopperError("unsupported", "the PTX has no kernel")
    first = text.index("{", entry.end()) + 1
    last = closing(text, first - 1)
    begin = _BEGIN.format(dynamic=dynamic, behind=BEHIND, bit=RANK_BIT)
    body = re.sub(r"\b(?:ret(?:\.uni)?|exit)\s*;", "bra HOPPER_END;", text[first:last])
    return text[:first] + begin + body + _END + text[last:]
