"""TMA loads with `.cta_group::2`, for runs that measure loads only.

Nothing waits here that would not wait on a B200. On a B200 such a load may signal a barrier of the
other CTA of the pair; on Hopper it can only signal a barrier of a CTA that it writes to. So the
rewritten program splits the signal. The load itself signals the bytes that land in the barrier's
CTA, as on a B200. The bytes that land in the other CTA of the pair are reported to the barrier at
once, before they have landed. So a stage counts as full when the half of the CTA that waits has
landed; both halves were asked for together, and are equally large.

Nobody waits for the bytes that land in the other CTA, because they signal none of the program's
barriers. An mbarrier that we add to that CTA counts them, and the CTA's last warp waits for them
before it exits: a copy that lands in a CTA that has exited is a launch failure.

A multicast signals the same place in every CTA that it writes to. That is our mbarrier if all these
CTAs are on the other side of their pairs than the barrier; else it is the program's barrier. If the
mask has CTAs on both sides, the bytes for the other side are announced to the barrier in the same
place there, for which nobody waits. That place is noted: the last warp of a CTA makes all arrivals
that this barrier lacks, and waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hopper.byte_tensormaps import LaunchFacts
from hopper.errors import HopperError
from hopper.statements import Block, Statement, closing

RANK_BIT = 24  # of a shared::cluster address, the lowest of its CTA's rank
EVEN_RANKS = 0x5555  # of a multicast's mask
BEHIND = 256  # bytes of shared memory after the kernel's own: the mbarrier, notes from NOTES
NOTES, NOTED = 128, 32  # a note is four bytes, its place by that of the barrier
POLLS = 1000  # of a noted barrier, some 20 us: a program may have announced bytes that never come
_EXPECT = "mbarrier.expect_tx.relaxed.{}.b64"
_COMPLETE = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64"


def fact(block: Block, facts: LaunchFacts, map_: str, which: int) -> str:
    """A 32-bit operand with item `which` of LaunchFacts.maps, for the map at an address."""
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
    s: Statement,
    block: Block,
    opcode: str,
    operands: list[str],
    facts: LaunchFacts,
    map_: str,
    number: int,
) -> None:
    """Write the load and its signals. opcode, operands: without `.cta_group`. number: of the
    statement, for its label.
    """
    nbytes = fact(block, facts, map_, 2)
    barrier, parity = block.address(operands[2]), block.register("b32")
    other = block.register("pred")  # the barrier is the other CTA's
    block.emit(f"xor.b32 {parity}, {barrier}, hopper_rank_bit")
    block.emit(f"and.b32 {parity}, {parity}, {1 << RANK_BIT}")
    block.emit(f"setp.ne.u32 {other}, {parity}, 0")
    signalled = block.register("b32")
    if s.has("multicast::cluster"):
        here = block.register("b32")  # the place of the barrier on this CTA's side
        block.emit(f"xor.b32 {here}, {barrier}, {parity}")
        mask = block.as_32(operands[3])
        both, far, others = _sides(block, mask, barrier)
        block.emit(f"selp.b32 {signalled}, {here}, hopper_own, {both}")
        block.emit(f"setp.eq.u32 {other}, {others}, 0")
        block.emit(f"@{other} bra HOPPER_TOLD_{number}")
        _tell_pairs(block, facts.cluster, far, others, here, signalled, nbytes)
        block.emit(f"@!{both} bra HOPPER_TOLD_{number}")
        _note(block, facts.cluster, far, here, f"HOPPER_TOLD_{number}")
        block.lines.append(f"HOPPER_TOLD_{number}:")
    else:
        block.emit(f"selp.b32 {signalled}, hopper_own, {barrier}, {other}")
        block.emit(f"@{other} {_EXPECT.format('cta.shared::cta')} [hopper_own], {nbytes}")
        block.emit(f"@{other} {_COMPLETE} [{barrier}], {nbytes}")
    block.emit(f"{opcode} {', '.join([*operands[:2], f'[{signalled}]', *operands[3:]])}")


def _sides(block: Block, mask: str, barrier: str) -> tuple[str, str, str]:
    """(whether CTAs of a mask are on the side of their pairs that the barrier is on; the other
    side's rank in a pair; the CTAs of the mask on that side, two bits a pair).
    """
    both, far, others, same = (block.register(k) for k in ("pred", "b32", "b32", "b32"))
    block.emit(f"shr.u32 {far}, {barrier}, {RANK_BIT}")
    block.emit(f"not.b32 {far}, {far}")
    block.emit(f"and.b32 {far}, {far}, 1")
    block.emit(f"shl.b32 {others}, {EVEN_RANKS}, {far}")
    block.emit(f"and.b32 {others}, {mask}, {others}")
    block.emit(f"xor.b32 {same}, {mask}, {others}")
    block.emit(f"setp.ne.u32 {both}, {same}, 0")
    block.emit(f"shr.u32 {others}, {others}, {far}")
    return both, far, others


def _pairs(block: Block, cluster: int, *addresses: str) -> Iterator[int]:
    """The pairs of a cluster; the addresses, of the first pair, lead to each in its turn."""
    for pair in range(cluster // 2):
        if pair:
            for address in addresses:
                block.emit(f"add.u32 {address}, {address}, {2 << RANK_BIT}")
        yield pair


def _tell_pairs(
    block: Block, cluster: int, far: str, others: str, here: str, signalled: str, nbytes: str
) -> None:
    """For each CTA that a multicast writes to, and which waits by its pair's other CTA: that one's
    barrier is told the bytes, and what the copy signals is to expect them.
    """
    bit, there, told, near = (block.register("b32") for _ in range(4))
    chosen = block.register("pred")
    block.emit(f"xor.b32 {near}, {far}, 1")
    block.emit(f"mapa.shared::cluster.u32 {there}, {signalled}, {far}")
    block.emit(f"mapa.shared::cluster.u32 {told}, {here}, {near}")
    for pair in _pairs(block, cluster, there, told):
        block.emit(f"and.b32 {bit}, {others}, {1 << 2 * pair}")
        block.emit(f"setp.ne.u32 {chosen}, {bit}, 0")
        block.emit(f"@{chosen} {_EXPECT.format('cluster.shared::cluster')} [{there}], {nbytes}")
        block.emit(f"@{chosen} {_COMPLETE} [{told}], {nbytes}")


def _note(block: Block, cluster: int, far: str, here: str, done: str) -> None:
    """Where a thread uses a barrier for the first time, its place in the CTAs of the other side,
    whatever the mask. done: a label.
    """
    note, bit, place, at = (block.register("b32") for _ in range(4))
    again = block.register("pred")
    block.emit(f"shr.u32 {note}, {here}, 3")
    block.emit(f"and.b32 {note}, {note}, {NOTED - 1}")
    block.emit(f"shl.b32 {bit}, 1, {note}")
    block.emit(f"and.b32 {at}, hopper_noted, {bit}")
    block.emit(f"setp.ne.u32 {again}, {at}, 0")
    block.emit(f"@{again} bra {done}")
    block.emit(f"or.b32 hopper_noted, hopper_noted, {bit}")
    block.emit(f"shl.b32 {note}, {note}, 2")
    block.emit(f"add.u32 {note}, {note}, hopper_own")
    block.emit(f"mapa.shared::cluster.u32 {place}, {here}, {far}")
    block.emit(f"mapa.shared::cluster.u32 {at}, {note}, {far}")
    for _ in _pairs(block, cluster, place, at):
        block.emit(f"st.relaxed.cluster.shared::cluster.b32 [{at}+{NOTES}], {place}")


# The barrier of ours completes once: after the last of the CTA's warps has ended, and all landed.
_BEGIN = """
	.reg .b32 hopper_own, hopper_rank_bit, hopper_noted, hopper_t, hopper_n;
	.reg .b64 hopper_s;
	.reg .pred hopper_p;
	mov.u32 hopper_own, {dynamic};
	mov.u32 hopper_n, %dynamic_smem_size;
	add.u32 hopper_own, hopper_own, hopper_n;
	sub.u32 hopper_own, hopper_own, {behind};
	mov.u32 hopper_rank_bit, %cluster_ctarank;
	shl.b32 hopper_rank_bit, hopper_rank_bit, {bit};
	mov.u32 hopper_t, %tid.x;
	mov.u32 hopper_n, %tid.y;
	or.b32 hopper_t, hopper_t, hopper_n;
	mov.u32 hopper_n, %tid.z;
	or.b32 hopper_t, hopper_t, hopper_n;
	setp.ne.u32 hopper_p, hopper_t, 0;
	mov.u32 hopper_t, %ntid.x;
	mov.u32 hopper_n, %ntid.y;
	mul.lo.u32 hopper_t, hopper_t, hopper_n;
	mov.u32 hopper_n, %ntid.z;
	mul.lo.u32 hopper_t, hopper_t, hopper_n;
	add.u32 hopper_t, hopper_t, 31;
	shr.u32 hopper_t, hopper_t, 5;
	@hopper_p bra HOPPER_BEGIN;
	mbarrier.init.shared.b64 [hopper_own], hopper_t;
	fence.mbarrier_init.release.cluster;
HOPPER_BEGIN:
	bar.warp.sync 0xffffffff;
{clear}	bar.sync 0;
"""
_CLEAR = f"""\
	mov.b32 hopper_noted, 0;
	mov.u32 hopper_t, %laneid;
	shl.b32 hopper_t, hopper_t, 2;
	add.u32 hopper_t, hopper_t, hopper_own;
	st.relaxed.cta.shared.b32 [hopper_t+{NOTES}], 0;
"""
# Only the last warp waits: others may be counted on to have left, by a barrier that counts those
# that have not. By then all bytes for this CTA are announced: on a B200 it waited for their use.
_END = """
HOPPER_END:
	bar.warp.sync 0xffffffff;
	mov.u32 hopper_t, %laneid;
	setp.eq.u32 hopper_p, hopper_t, 0;
	mov.b32 hopper_n, 0;
	@hopper_p mbarrier.arrive.shared.b64 hopper_s, [hopper_own];
	@hopper_p mbarrier.pending_count.b64 hopper_n, hopper_s;
	shfl.sync.idx.b32 hopper_n, hopper_n, 0, 31, 0xffffffff;
	setp.ne.u32 hopper_p, hopper_n, 1;
	@hopper_p bra HOPPER_ENDED;
{noted}HOPPER_LANDED:
	mbarrier.try_wait.parity.shared.b64 hopper_p, [hopper_own], 0;
	@!hopper_p bra HOPPER_LANDED;
HOPPER_ENDED:
	ret;
"""
_NOTED = f"""\
	shl.b32 hopper_t, hopper_t, 2;
	add.u32 hopper_t, hopper_t, hopper_own;
	ld.relaxed.cluster.shared.b32 hopper_t, [hopper_t+{NOTES}];
	setp.eq.u32 hopper_p, hopper_t, 0;
	@hopper_p bra HOPPER_LANDED;
	mbarrier.arrive.shared.b64 hopper_s, [hopper_t];
	mbarrier.pending_count.b64 hopper_n, hopper_s;
	sub.u32 hopper_n, hopper_n, 1;
	setp.ne.u32 hopper_p, hopper_n, 0;
	@hopper_p mbarrier.arrive.shared.b64 _, [hopper_t], hopper_n;
	mov.b32 hopper_n, {POLLS};
HOPPER_NOTED:
	mbarrier.test_wait.shared.b64 hopper_p, [hopper_t], hopper_s;
	@hopper_p bra HOPPER_LANDED;
	sub.u32 hopper_n, hopper_n, 1;
	setp.ne.u32 hopper_p, hopper_n, 0;
	@hopper_p bra HOPPER_NOTED;
"""


def framed(text: str, dynamic: str) -> str:
    """The one kernel of a module, with code at its start that makes our mbarrier of the CTA and
    code at its end that waits for it. dynamic: the symbol of dynamic shared memory.
    """
    entry = re.search(r"\.entry\s+[\w$]+", text)
    if entry is None:
        raise HopperError("unsupported", "the PTX has no kernel")
    first = text.index("{", entry.end()) + 1
    last = closing(text, first - 1)
    clear, noted = (_CLEAR, _NOTED) if "multicast::cluster" in text else ("", "")
    begin = _BEGIN.format(dynamic=dynamic, behind=BEHIND, bit=RANK_BIT, clear=clear)
    body = re.sub(r"\b(?:ret(?:\.uni)?|exit)\s*;", "bra HOPPER_END;", text[first:last])
    return text[:first] + begin + body + _END.format(noted=noted) + text[last:]
