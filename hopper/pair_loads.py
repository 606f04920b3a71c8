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
    base = block.made("mov.b64", facts.first, kind="b64")
    block.emit(f"cvta.param.u64 {base}, {base}")
    offset = block.made("cvt.u32.u64", block.made("sub.s64", map_, base, kind="b64"))
    found = block.made("mov.b32", steps[0][1])
    for at, value in steps[1:]:
        behind = block.made("setp.ge.u32", offset, at, kind="pred")
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
    barrier = block.address(operands[2])
    parity = block.made("xor.b32", barrier, "hopper_rank_bit")
    block.emit(f"and.b32 {parity}, {parity}, {1 << RANK_BIT}")
    other = block.made("setp.ne.u32", parity, 0, kind="pred")  # the barrier is the other CTA's
    if s.has("multicast::cluster"):
        here = block.made("xor.b32", barrier, parity)  # the place of the barrier on this CTA's side
        both, far, others = _sides(block, block.as_32(operands[3]), barrier)
        signalled = block.made("selp.b32", here, "hopper_own", both)
        block.emit(f"setp.eq.u32 {other}, {others}, 0")
        block.emit(f"@{other} bra HOPPER_TOLD_{number}")
        _tell_pairs(block, facts.cluster, far, others, here, signalled, nbytes)
        block.emit(f"@!{both} bra HOPPER_TOLD_{number}")
        _note(block, facts.cluster, far, here, f"HOPPER_TOLD_{number}")
        block.lines.append(f"HOPPER_TOLD_{number}:")
    else:
        signalled = block.made("selp.b32", "hopper_own", barrier, other)
        block.emit(f"@{other} {_EXPECT.format('cta.shared::cta')} [hopper_own], {nbytes}")
        block.emit(f"@{other} {_COMPLETE} [{barrier}], {nbytes}")
    block.emit(f"{opcode} {', '.join([*operands[:2], f'[{signalled}]', *operands[3:]])}")


def _sides(block: Block, mask: str, barrier: str) -> tuple[str, str, str]:
    """(whether CTAs of a mask are on the side of their pairs that the barrier is on; the other
    side's rank in a pair; the CTAs of the mask on that side, two bits a pair).
    """
    far = block.made("shr.u32", barrier, RANK_BIT)
    block.emit(f"not.b32 {far}, {far}")
    block.emit(f"and.b32 {far}, {far}, 1")
    others = block.made("and.b32", mask, block.made("shl.b32", EVEN_RANKS, far))
    both = block.made("setp.ne.u32", block.made("xor.b32", mask, others), 0, kind="pred")
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
    bit, chosen = block.register("b32"), block.register("pred")
    there = block.made("mapa.shared::cluster.u32", signalled, far)
    told = block.made("mapa.shared::cluster.u32", here, block.made("xor.b32", far, 1))
    for pair in _pairs(block, cluster, there, told):
        block.emit(f"and.b32 {bit}, {others}, {1 << 2 * pair}")
        block.emit(f"setp.ne.u32 {chosen}, {bit}, 0")
        block.emit(f"@{chosen} {_EXPECT.format('cluster.shared::cluster')} [{there}], {nbytes}")
        block.emit(f"@{chosen} {_COMPLETE} [{told}], {nbytes}")


def _note(block: Block, cluster: int, far: str, here: str, done: str) -> None:
    """Where a thread uses a barrier for the first time, its place in the CTAs of the other side,
    whatever the mask. done: a label.
    """
    note = block.made("and.b32", block.made("shr.u32", here, 3), NOTED - 1)
    bit = block.made("shl.b32", 1, note)
    again = block.made("setp.ne.u32", block.made("and.b32", "hopper_noted", bit), 0, kind="pred")
    block.emit(f"@{again} bra {done}")
    block.emit(f"or.b32 hopper_noted, hopper_noted, {bit}")
    note = block.made("add.u32", block.made("shl.b32", note, 2), "hopper_own")
    place = block.made("mapa.shared::cluster.u32", here, far)
    at = block.made("mapa.shared::cluster.u32", note, far)
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
