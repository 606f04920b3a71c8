"""What an instruction does to the world around its registers: a small closed set of effects.

The unit that executes an instruction says its effect where it registers it (registry.py), so that
an instruction is described once. Whoever looks at a run reads effects and no opcodes: the checker,
the clock, the explorer. They find their rule by the class of an effect. The checker calls a launch
incomplete that executes an effect without a rule; tests/b200/checker/test_incomplete.py lists them.

Sections are those of the PTX ISA, version 9.0. A scope is "cta", "cluster", "gpu" or "sys"; an
order is "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc" or "mmio" (8.4, 8.5).
"""

from __future__ import annotations

from dataclasses import dataclass

RELEASING = ("release", "acq_rel", "sc")
ACQUIRING = ("acquire", "acq_rel", "sc")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """pipe: what the instruction costs its sub-core, a line of clock/rates.py. "issue": its slot;
    the unit that carries it out adds the rest.
    """

    pipe: str = "issue"


# --- registers alone ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Computes(Effect):
    """Arithmetic, logic, comparisons (9.7.1 to 9.7.8). uniform: whether the uniform datapath takes
    it where the operands are the same in all lanes.
    """

    uniform: bool = False


@dataclass(frozen=True, kw_only=True)
class Moves(Computes):
    """mov, cvta, mapa (9.7.9). source: "register", "constant" or "other"; a copy of a register is
    ready when its source is.
    """

    source: str = "other"


@dataclass(frozen=True, kw_only=True)
class Converts(Computes):
    """cvt (9.7.9.21) to numbers of a format, such as "e2m1" or "f32"."""

    target: str


@dataclass(frozen=True, kw_only=True)
class Exchanges(Effect):
    """shfl, vote, match, redux (9.7.9.8, 9.7.13): the lanes exchange values, and meet."""


@dataclass(frozen=True, kw_only=True)
class Elects(Effect):
    """elect.sync (9.7.13): the lanes meet."""


@dataclass(frozen=True, kw_only=True)
class MultipliesInWarp(Effect):
    """mma.sync (9.7.14.5): the lanes meet. inputs: the formats of A and B."""

    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Transposes(Effect):
    """movmatrix (9.7.14.5.17)."""


@dataclass(frozen=True, kw_only=True)
class LooksAtLanes(Effect):
    """activemask (9.7.13), isspacep of shared memory (9.7.9.20): a question about where it runs."""


@dataclass(frozen=True, kw_only=True)
class Jumps(Effect):
    """bra, brx (9.7.12). leaves: ret and exit, which end the thread."""

    leaves: bool = False


@dataclass(frozen=True, kw_only=True)
class Traps(Effect):
    """trap (9.7.19)."""


@dataclass(frozen=True, kw_only=True)
class Hints(Effect):
    """prefetch, applypriority, createpolicy (9.7.9): changes no result. policies: as of Access."""

    policies: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Discards(Effect):
    """discard (9.7.9): the bytes have no value from then on."""


@dataclass(frozen=True, kw_only=True)
class Sleeps(Effect):
    """nanosleep (9.7.19)."""


@dataclass(frozen=True, kw_only=True)
class CallsSystem(Effect):
    """A call of what is no part of the PTX: vprintf, __assertfail (9.7.12)."""


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ordered(Effect):
    """What may order memory for others (8.4). scope: "" where the instruction names none."""

    order: str
    scope: str = ""

    @property
    def strong(self) -> bool:
        return self.order != "weak"

    @property
    def releases(self) -> bool:
        return self.order in RELEASING

    @property
    def acquires(self) -> bool:
        return self.order in ACQUIRING


@dataclass(frozen=True, kw_only=True)
class Access(Ordered):
    """The lanes access memory at their addresses.

    space: "global", "shared", "shared::cluster", "local", "param", "const" or "generic". nbytes:
    bytes of a lane, or of a matrix row that a lane names. bits: of an element.
    cached: whether the L1 may keep what is loaded; policies: eviction priorities asked of L1 or L2
    ("evict_first", "evict_last", "no_allocate").
    """

    space: str
    nbytes: int
    bits: int
    cached: bool = True
    policies: frozenset[str] = frozenset()

    @property
    def private(self) -> bool:
        """Whether nobody else can see the access: a thread's own memory, or what nobody writes."""
        return self.space in ("param", "const", "local")

    @property
    def in_constant_bank(self) -> bool:
        """Whether it is an operand of other instructions in SASS."""
        return self.space in ("param", "const")


@dataclass(frozen=True, kw_only=True)
class Loads(Access):
    """ld, ldu (9.7.9). constant: ld.global.nc, of what nobody writes meanwhile."""

    constant: bool = False


@dataclass(frozen=True, kw_only=True)
class Stores(Access):
    """st (9.7.9)."""


@dataclass(frozen=True, kw_only=True)
class Fills(Effect):
    """st.bulk (9.7.9.13): the lanes write zeros to shared memory, weakly, from their addresses on,
    as many bytes as an operand says. space: "shared::cta" or "generic". No Access: what asks those
    for `nbytes` knows no size that differs between lanes and executions.
    """

    space: str


@dataclass(frozen=True, kw_only=True)
class Updates(Access):
    """atom, red (9.7.13.5, 9.7.13.6): a read-modify-write of one `operation`, as "add". returns:
    it gives the old value, and somebody reads that (program/unread.py). floats: of elements that
    are floating-point numbers.
    """

    operation: str
    floats: bool
    returns: bool


@dataclass(frozen=True, kw_only=True)
class MatrixLoads(Access):
    """ldmatrix (9.7.14.5.15). addresses: how many lanes, the lowest, give the address of a row."""

    addresses: int


@dataclass(frozen=True, kw_only=True)
class MatrixStores(Access):
    """stmatrix (9.7.14.5.16); as MatrixLoads."""

    addresses: int


# --- asynchronous operations: what `Machine.issue` gets (chip/operations.py) ----------------------


@dataclass(frozen=True, kw_only=True)
class Copies(Effect):
    """cp.async, cp.async.bulk, cp.async.bulk.tensor and their cp.reduce (9.7.9.25, 9.7.9.27),
    st.async (9.7.9.12), red.async (9.7.13.7).

    source, target: state spaces; "" for registers, "L2" for a prefetch. bulk: a TMA copy. signals:
    what tells of its end: "mbarrier", or the thread's groups of "bulk" or "cp.async" copies; "" for
    nothing. operation: of a reduction; floats: on floating-point numbers, as far as the instruction
    says it. multicast: to several CTAs.
    """

    source: str
    target: str
    signals: str
    bulk: bool = False
    operation: str = ""
    floats: bool = False
    multicast: bool = False

    @property
    def to_peer(self) -> bool:
        """Whether it goes from this CTA to the shared memory of another."""
        return self.target == "shared::cluster" and self.source in ("", "shared::cta")


@dataclass(frozen=True, kw_only=True)
class ArrivesBehindCopies(Effect):
    """cp.async.mbarrier.arrive (9.7.13.15). counted: .noinc, the phase counts it already."""

    counted: bool


@dataclass(frozen=True, kw_only=True)
class CommitsGroup(Effect):
    """cp.async.commit_group, cp.async.bulk.commit_group (9.7.9.25). bulk: the latter."""

    bulk: bool


@dataclass(frozen=True, kw_only=True)
class WaitsForGroups(Effect):
    """wait_group, wait_all of the same. sources: .read, until the sources have been read.
    everything: wait_all, of copies in no group, too.
    """

    bulk: bool
    sources: bool = False
    everything: bool = False


@dataclass(frozen=True, kw_only=True)
class CoreOperation(Effect):
    """An operation in the tensor core's queue (9.7.16). pair: of .cta_group::2."""

    pair: bool


@dataclass(frozen=True, kw_only=True)
class Multiplies(CoreOperation):
    """tcgen05.mma (9.7.16.10)."""


@dataclass(frozen=True, kw_only=True)
class CopiesToTensor(CoreOperation):
    """tcgen05.cp (9.7.16.9)."""


@dataclass(frozen=True, kw_only=True)
class ShiftsRows(CoreOperation):
    """tcgen05.shift (9.7.16.9)."""


@dataclass(frozen=True, kw_only=True)
class Commits(CoreOperation):
    """tcgen05.commit (9.7.16.12): arrives when earlier operations are complete. multicast: at the
    mbarriers of the CTAs in a mask.
    """

    multicast: bool


@dataclass(frozen=True, kw_only=True)
class RequestsWork(Effect):
    """clusterlaunchcontrol.try_cancel (9.7.13.16)."""


@dataclass(frozen=True, kw_only=True)
class ReadsRequest(Effect):
    """clusterlaunchcontrol.query_cancel. success: .is_canceled."""

    success: bool


# --- mbarriers (9.7.13.15) ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InitsMbarrier(Effect):
    """mbarrier.init."""


@dataclass(frozen=True, kw_only=True)
class InvalidatesMbarrier(Effect):
    """mbarrier.inval."""


@dataclass(frozen=True, kw_only=True)
class Arrives(Ordered):
    """mbarrier.arrive, arrive_drop. expects: .expect_tx, with a number of bytes. drops: the latter.
    space: of the mbarrier.
    """

    space: str
    expects: bool = False
    drops: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpectsBytes(Effect):
    """mbarrier.expect_tx."""


@dataclass(frozen=True, kw_only=True)
class CompletesBytes(Effect):
    """mbarrier.complete_tx."""


@dataclass(frozen=True, kw_only=True)
class ReadsMbarrierState(Computes):
    """mbarrier.pending_count, of the state that an arrival returned."""


@dataclass(frozen=True, kw_only=True)
class WaitsForPhase(Ordered):
    """mbarrier.test_wait, try_wait: looks whether a phase is over. shift: the bit of the operand
    that has the phase's parity.
    """

    shift: int

    @property
    def by_token(self) -> bool:
        """Whether the operand is the state that an arrival returned, not a parity."""
        return self.shift != 0


# --- barriers, fences, registers, grids -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MeetsInWarp(Effect):
    """bar.warp.sync (9.7.13.2): the lanes see each other's writes."""


@dataclass(frozen=True, kw_only=True)
class MeetsInCta(Effect):
    """bar, barrier (9.7.13.1). waits: not .arrive. counted: the operand after the barrier's number
    is a number of threads.
    """

    waits: bool
    counted: bool


@dataclass(frozen=True, kw_only=True)
class ArrivesInCluster(Effect):
    """barrier.cluster.arrive (9.7.13.3)."""

    relaxed: bool


@dataclass(frozen=True, kw_only=True)
class WaitsInCluster(Effect):
    """barrier.cluster.wait."""


@dataclass(frozen=True, kw_only=True)
class FencesMemory(Ordered):
    """fence, membar (9.7.13.4)."""


@dataclass(frozen=True, kw_only=True)
class FencesProxy(Effect):
    """fence.proxy (9.7.13.4): the async proxy sees what the generic proxy has done before. shared,
    far: of shared, of global memory; neither for .alias. order: of .async::generic, which is a
    fence of the cluster's memory, too; else "".
    """

    shared: bool
    far: bool
    order: str = ""


@dataclass(frozen=True, kw_only=True)
class FencesInits(Effect):
    """fence.mbarrier_init."""


@dataclass(frozen=True, kw_only=True)
class FencesTensormap(Ordered):
    """fence.proxy.tensormap::generic (9.7.13.4)."""


@dataclass(frozen=True, kw_only=True)
class SetsRegisters(Effect):
    """setmaxnreg (9.7.19.5). count: registers of a thread from then on."""

    count: int


@dataclass(frozen=True, kw_only=True)
class OrdersGrids(Effect):
    """griddepcontrol (9.7.13). waits: .wait, else .launch_dependents."""

    waits: bool


# --- tensor memory and tensormaps -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AllocatesTensor(Effect):
    """tcgen05.alloc (9.7.16.7). pair: of .cta_group::2."""

    pair: bool


@dataclass(frozen=True, kw_only=True)
class FreesTensor(Effect):
    """tcgen05.dealloc."""

    pair: bool


@dataclass(frozen=True, kw_only=True)
class EndsAllocation(Effect):
    """tcgen05.relinquish_alloc_permit."""


@dataclass(frozen=True, kw_only=True)
class TensorLoads(Effect):
    """tcgen05.ld (9.7.16.8). packed: .pack::16b, two cells a register. registers: of a lane."""

    packed: bool
    registers: int


@dataclass(frozen=True, kw_only=True)
class TensorStores(Effect):
    """tcgen05.st; as TensorLoads, with .unpack::16b."""

    packed: bool
    registers: int


@dataclass(frozen=True, kw_only=True)
class WaitsForTensor(Effect):
    """tcgen05.wait (9.7.16.8). loads: ::ld, else ::st."""

    loads: bool


@dataclass(frozen=True, kw_only=True)
class FencesTensor(Effect):
    """tcgen05.fence (9.7.16.11). before: ::before_thread_sync."""

    before: bool


@dataclass(frozen=True, kw_only=True)
class EditsTensormap(Effect):
    """tensormap.replace (9.7.9.28). space: of the tensormap."""

    space: str


@dataclass(frozen=True, kw_only=True)
class PublishesTensormap(Ordered):
    """tensormap.cp_fenceproxy (9.7.13): copies an edited tensormap to global memory."""


@dataclass(frozen=True, kw_only=True)
class PrefetchesTensormap(Hints):
    """prefetch.tensormap."""
