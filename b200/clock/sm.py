"""The units of one SM as servers. Times in clk."""

from __future__ import annotations

from b200.chip.placement import Seat
from b200.clock.constants import Constants
from b200.clock.memory_system import Server
from b200.clock.rates import PIPES
from b200.clock.under_way import UnderWay


class TensorPipe:
    """An SM's queue of tcgen05.mma, cp, shift and commit, executed in order. Times in clk.

    free: when the next MMA can start. copied: when the copies issued so far are in tensor memory
    (an MMA after them waits for this). head: when the latest operation left the queue. done: when
    all operations are complete. effect: when the latest operation with a result takes effect.
    """

    __slots__ = ("free", "copied", "head", "done", "effect", "busy", "copy_busy", "count")

    def __init__(self):
        self.free = self.copied = self.head = self.done = self.effect = 0.0
        self.busy = self.copy_busy = 0.0
        self.count = 0


class SubCore:
    """A quarter of an SM: it issues one instruction a clk, and has pipes and one tensor-memory
    port. free, busy: of the issue port and the pipes, in the order of PIPES. warps: how many live.
    """

    __slots__ = ("free", "busy", "tmem", "warps")

    def __init__(self):
        self.free = [0.0] * len(PIPES)
        self.busy = [0.0] * len(PIPES)
        self.warps = 0
        self.tmem = Server()


class SM(Seat):
    """A streaming multiprocessor.

    Its servers: tma executes tensor and bulk copies; fill takes the rows that arrive in shared
    memory; lsu takes loads and stores of the warps; dsmem sends to shared memory of other SMs,
    dsmem_in takes what they send. storing: sectors on their way to the L2; store_free: when their
    port has passed on all that it was given. pages, descriptors: what the translation cache and the
    descriptor cache have seen.
    unfenced: bytes of global memory read or written since the last fence. answered: when all these
    accesses are answered. fenced: when the last fence is done.
    """

    def __init__(self, index: int, gpc: int, cpc: int, die: int):
        super().__init__(index, gpc, cpc, die)
        self.tma, self.fill, self.lsu, self.stores = Server(), Server(), Server(), Server()
        self.dsmem, self.dsmem_in = Server(), Server()
        self.storing, self.store_free = UnderWay(), 0.0
        self.pipe = TensorPipe()
        self.cores = tuple(SubCore() for _ in range(4))
        self.pages: set[int] = set()
        self.descriptors: dict[tuple[object, ...], float] = {}  # when it has them
        self.lines: dict[int, tuple[float, float]] = {}  # sectors of the L1: asked for, there
        self.unfenced = 0
        self.answered = self.fenced = 0.0


def mma_interval(c: Constants, m: int, n: int, group: int, a_in_tmem: bool) -> float:
    """clk from one tcgen05.mma to the next: the time of the arithmetic, or of reading the operands
    (128 B/clk, 32 B a row), whichever is longer.
    """
    rows = m // group
    arithmetic = n / 4 if group == 2 and m == 128 else n / 2
    operands = n / (4 * group)
    if a_in_tmem:
        return max(arithmetic, c.mma_floor)
    operands += c.mma_a_ss * rows / 128
    if group == 2:
        operands += c.mma_pair256_extra if rows == 128 else c.mma_pair_extra
    return max(arithmetic, operands, c.mma_floor)


def mma_latency(c: Constants, m: int, n: int, group: int, a_in_tmem: bool) -> float:
    """clk from a tcgen05.mma until a waiting warp sees its commit (SemiAnalysis' umma_lat)."""
    n = max(n, 64)
    if group == 1:
        return n / 2 + (c.lat_ts if a_in_tmem else c.lat_ss64 if m == 64 else c.lat_ss128)
    if m == 128:
        return n / 4 + (c.lat_ts_pair128 if a_in_tmem else c.lat_ss_pair128)
    return n / 2 + (c.lat_ts_pair256 if a_in_tmem else c.lat_ss_pair256)
