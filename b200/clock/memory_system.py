"""The memory system that all SMs share: L2, ports to the GPCs, fabric between the dies, DRAM.

Times are in clk. The L2 has two partitions, one on each die. A partition keeps a copy of what the
SMs of its die have read, from either die's DRAM; a line that only the other partition holds comes
over the fabric. The L2's answers reach a GPC through its port. DRAM is a set of channels, each a
server. `dram_grain` consecutive bytes lie on one channel, and the channels follow one another in a
pseudo-random order. So their load is unequal, which makes the queues that measurements show below
saturation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from b200.clock.coalescer import Coalescer
from b200.clock.constants import Constants
from b200.clock.stores import SECTOR_SHIFT
from b200.clock.under_way import UnderWay
from b200.clock.write_back import Dirty, Moved

if TYPE_CHECKING:
    from b200.chip.global_memory import Region
    from b200.clock.sm import SM

UNIT = 64  # bytes: what DRAM delivers for a missing sector
UNIT_SHIFT = 6
_HASH = 0x9E3779B97F4A7C15
Index = np.ndarray  # of units


class Server:
    """Serves one request at a time, in the order of the times that the requests arrive at. Calls of
    `serve` may come in another order: a request for a later time leaves a gap before it, which
    requests for earlier times fill. One that is longer than a gap goes on in the next, as a request
    is many small ones: the sectors of a warp's load, the lines of a copy.

    busy: total clk of service. now (of all servers): no request will be for an earlier time.
    """

    __slots__ = ("free", "busy", "gaps")
    now = 0.0

    def __init__(self):
        self.free = self.busy = 0.0
        self.gaps: list[tuple[float, float]] = []  # idle times between now and `free`

    def serve(self, at: float, service: float) -> float:
        """The end of a request for `service` clk that arrives at `at`, less `service`: when it
        begins to be served, if it is served without a break.
        """
        self.busy += service
        free = self.free
        if at >= free:
            if at > Server.now:
                begin = free if free > Server.now else Server.now
                self.gaps.append((begin, at))
            self.free = at + service
            return at
        end = self._fill(at, service) if self.gaps else free + service
        self.free = max(free, end)
        return end - service

    def _fill(self, at: float, service: float) -> float:
        """End of a service that begins in the first gap and goes on in those behind it."""
        gaps = self.gaps
        while gaps and gaps[0][1] <= Server.now:
            gaps.pop(0)
        first = last = bisect_right(gaps, at, key=itemgetter(1))
        kept: list[tuple[float, float]] = []
        while last < len(gaps):
            begin, end = gaps[last]
            last += 1
            start = at if at > begin else begin
            if start > begin:
                kept.append((begin, start))
            if start + service <= end:
                rest = [(start + service, end)] if start + service < end else []
                gaps[first:last] = [*kept, *rest]
                return start + service
            service -= end - start
            at = end
        gaps[first:last] = kept
        return self.free + service


def _units(region: Region, starts: np.ndarray, nbytes: int, shift: int = UNIT_SHIFT) -> np.ndarray:
    """Numbers of the units, of 1 << shift bytes, of an allocation that hold `nbytes` from each
    address on; one that holds several of these small pieces counts once.
    """
    offsets, unit = starts - (region.base & -UNIT), 1 << shift
    first = offsets >> shift
    if not (int(np.bitwise_or.reduce(offsets)) | nbytes) & (unit - 1):  # each begins and ends one
        width = nbytes >> shift
        return first if width == 1 else (first[:, None] + np.arange(width)).ravel()
    last = (offsets + (nbytes - 1)) >> shift
    wide = last - first
    width = int(wide.max()) + 1
    if width == 1:
        return first if nbytes >= unit else _distinct(first)
    index = first[:, None] + np.arange(width)
    if int(wide.min()) + 1 < width:
        return index[index <= last[:, None]]
    return index.ravel()


def _distinct(index: Index) -> Index:
    """np.unique of few numbers, in a fifth of its time."""
    ordered = np.sort(index)
    others = ordered[1:] != ordered[:-1]
    return ordered if others.all() else ordered[np.concatenate(([True], others))]


class Held:
    """An allocation, as the chip holds it. lines: a byte a UNIT: bit d set where die d's partition
    holds it. ready: of each UNIT, when the L2 has what it has asked DRAM for. place: its address on
    the chip, by order of use: runs repeat exactly. stored: which sectors stores have left to be
    written back.
    """

    def __init__(self, nbytes: int, fill: int, place: int):
        units = (nbytes >> UNIT_SHIFT) + 2
        self.lines, self.place = np.full(units, fill, np.uint8), place
        self.ready = np.zeros(units, np.float32)
        self.stored = np.zeros((nbytes >> SECTOR_SHIFT) + 4, bool)


class MemorySystem:
    """L2 and DRAM of the chip for one launch.

    l2_bytes, dram_bytes: delivered so far. coalesced_bytes: delivered to SMs that
    shared an answer. written_bytes: written by stores. dirty: what a memset right before has left;
    None without one.
    stored_bytes: sectors that stores have left to be written back; a sector counts once however
    often it is written or added to. crowded_bytes: the part of stored_bytes and dram_bytes whose
    DRAM channel had something else to do. windows: copies of each CPC.
    """

    def __init__(self, c: Constants, ghz: float, dirty: bool, cold: bool, gpcs: tuple[int, ...]):
        """gpcs: number of SMs of each GPC."""
        self.c, self.gpcs = c, gpcs
        self.ports = tuple(Server() for _ in gpcs)
        chip = c.port_bandwidth / c.l2_clock  # bytes a clk to all GPCs
        self.port_clk = [sum(gpcs) / (chip * sms) for sms in gpcs]  # clk a byte
        self.l2 = (Server(), Server())
        self.l2_clk = 2 * c.l2_clock / c.l2_bandwidth  # clk a byte, of one die's partition
        self.fill_clk = c.l2_fill * self.l2_clk
        self.fills = [Server() for _ in gpcs]
        self.outside_clk = c.l2_clock / c.outside_bandwidth
        self.cold = cold
        self.fabric_clk = 2 * ghz * 1e9 / c.fabric_bandwidth
        self.channels = int(c.dram_channels)
        self.dram_clk = self.channels * ghz * 1e9 / c.dram_bandwidth
        self.dram_latency: float = c.dram_extra_clk + c.dram_extra_ns * ghz
        self.grain = int(c.dram_grain).bit_length() - 1
        self.channel = [Server() for _ in range(self.channels)]
        self.rows = int(c.dram_rows)  # that a channel has open, the oldest first
        self.open: list[OrderedDict[int, None]] = [OrderedDict() for _ in self.channel]
        self.late = 0.0  # of the operation being served: what DRAM takes beyond its quickest
        self.stores = (Server(), Server())  # the other direction: data on its way to the L2
        self.sector_clk = 2 * c.l2_sector * c.l2_clock / c.store_bandwidth
        self.fabric = (Server(), Server())
        self.dirty = Dirty(c) if dirty else None
        self.held: dict[int, Held] = {}
        self.coalescers: dict[int, Coalescer] = defaultdict(
            lambda: Coalescer(c.lrc_bytes, c.lrc_tpc_bytes, c.lrc_beside_multicast)
        )
        self.windows: dict[int, UnderWay] = defaultdict(UnderWay)
        self.l2_bytes = self.dram_bytes = self.written_bytes = 0
        self.coalesced_bytes = 0
        self.stored_bytes = self.crowded_bytes = 0

    def _held(self, region: Region) -> Held:
        found = self.held.get(region.base)
        if found is None or len(found.lines) < (region.size >> UNIT_SHIFT) + 2:
            place, fill = (len(self.held) + 1) << 36, 0 if self.cold else 3
            found = self.held[region.base] = Held(region.size, fill, place)
        return found

    def read(
        self,
        at: float,
        sm: SM,
        region: Region,
        starts: np.ndarray,
        nbytes: int,
        latency: float,
        fan_out: bool = False,
        rows: bool = False,
    ) -> tuple[float, float]:
        """Read `nbytes` at each address. Returns (first, last): the times when the first and the
        last bytes are at the SM.

        at: when the requests leave the SM. latency: of a hit in the near partition, there and back.
        fan_out: whether the data goes to several CTAs of a cluster; such a request shares no answer
        with others. rows: whether each address is a request of its own, as with the TMA: a request
        of less than `lrc_row` bytes shares no answer, and takes the port as long as `port_row`
        (lab/h200/ingest.py).
        """
        held, index = self._held(region), _units(region, starts, nbytes)
        total, asks = len(starts) * nbytes, (held, index, latency)
        gpc = self.coalescers[sm.gpc]
        if rows:
            total = len(starts) * max(nbytes, int(self.c.port_row))
        if fan_out or (rows and nbytes < self.c.lrc_row):
            slower = self.c.port_multicast if fan_out else 1.0
            first, last = self._answer(at, sm, *asks, total, slower)
            if fan_out:
                gpc.multicast(last, total)
            return first, last
        chance = self._hash(region, int(starts[0]))
        shared = gpc.merge(at, region, len(held.lines), index, chance, sm.index)
        if shared:
            self.coalesced_bytes += total
            return shared
        first, last = self._answer(at, sm, *asks, total)
        gpc.sent(region, index, last, total, sm.index)
        return first, last

    def _answer(
        self,
        at: float,
        sm: SM,
        held: Held,
        index: Index,
        latency: float,
        total: int,
        slower: float = 1.0,
    ) -> tuple[float, float]:
        """What the L2 answers to a request for units: (first, last) arrival. total: bytes that the
        L2 delivers, and that pass the port of the SM's GPC, `slower` times as long as others.
        """
        self.l2_bytes += total
        die, port = sm.die, total * slower * self.port_clk[sm.gpc]
        width = max(port, total * self.l2_clk)
        state = held.lines[index].tobytes()  # to count in it takes a tenth of numpy's time
        missing, far = state.count(0), state.count(2 - die)
        fill = missing * UNIT * self.fill_clk / 2  # of each partition
        begin = self.l2[die].serve(at, total * self.l2_clk + fill)
        if fill:
            begin = max(begin, self.l2[1 - die].serve(at, fill))
        begin = self.ports[sm.gpc].serve(begin, port)
        # Asked for by an earlier read, perhaps still on its way.
        asked = 0.0 if missing == len(state) else float(held.ready[index].max())
        early = begin + latency
        late = max(begin, asked) + latency + width
        if missing or far:
            early, other = self._elsewhere(begin, die, held, index, missing, far, latency)
            late = max(late, other)
        return early, late

    def outside(self, at: float, sm: SM, nbytes: int, latency: float) -> tuple[float, float]:
        """Ask for `nbytes` of a box that lie outside of its tensor. Returns (first, last) arrival.
        The L2 answers such requests, too, but for no two SMs at once, and both partitions are busy
        for longer, so that other requests wait (rig sharing, outside; rig ingest, 64 alone).
        """
        port, busy = nbytes * self.port_clk[sm.gpc], nbytes * self.outside_clk
        begin = max(partition.serve(at, busy) for partition in self.l2)
        begin = self.ports[sm.gpc].serve(begin, port)
        return begin + latency, begin + latency + port

    def _elsewhere(
        self,
        begin: float,
        die: int,
        held: Held,
        index: Index,
        missing: int,
        far: int,
        latency: float,
    ) -> tuple[float, float]:
        """Some units are not in the near partition, but `far` of them in the other one, and
        `missing` in none: fetch them; (first, last) of the whole read.
        """
        everything = missing + far == len(index)
        asked = index
        if missing and missing < len(index):
            asked = index[held.lines[index] == 0]
        held.lines[index] |= np.uint8(1 << die)
        early = begin + latency if not everything else np.inf
        late = begin + latency
        if far:
            done = self._cross(begin, die, far * UNIT) + latency + self.c.l2_far
            early, late = min(early, done), max(late, done)
        if missing:
            low, high = self._dram(begin, die, held, _distinct(asked))
            early, late = min(early, low + latency), max(late, high + latency)
        return early, late

    def into_gpc(self, gpc: int, begin: float, width: float, nbytes: int) -> float:
        """The time when `nbytes` have passed a GPC's port to one of its SMs. begin: when they
        start. width: clk that they take if the SM is alone.
        """
        took = nbytes / (self.c.gpc_fill * self.gpcs[gpc])
        return max(begin + width, self.fills[gpc].serve(begin, took) + took)

    def _cross(self, at: float, die: int, nbytes: int) -> float:
        return self.fabric[die].serve(at, nbytes * self.fabric_clk)

    def _dram(self, at: float, die: int, held: Held, index: Index) -> tuple[float, float]:
        """Fetch missing units; (first, last) time at which DRAM has delivered, less the L2's own
        latency.
        """
        rows: list[int] = ((index << UNIT_SHIFT) + held.place >> self.grain).tolist()
        units: dict[int, tuple[int, int]] = {}  # by channel: how many, and the last one's row
        dies: dict[int, int] = {}  # of a row, a bit
        for row, count in Counter(rows).items():
            channel = self._channel(row)
            units[channel] = units.get(channel, (0, 0))[0] + count, row
            dies[row] = 1 << (channel & 1)
        nbytes = len(index) * UNIT
        clk = UNIT * self.dram_clk
        dirty = 1.0 if self.dirty is None else self.dirty.read(nbytes)
        self.dram_bytes += nbytes
        turns: list[tuple[float, float, bool]] = []
        far_bytes = 0
        for channel, (count, row) in sorted(units.items()):
            service = count * clk * dirty
            start = self._turn(channel, row, at, service)
            remote = (channel & 1) != die
            if start > at:
                self.crowded_bytes += count * UNIT
            if remote:
                far_bytes += count * UNIT
            turns.append((start, start + service, remote))
        half = self.c.l2_far / 2  # the measured latency is a mean of both dies
        crossing = self._cross(at, die, far_bytes) - at if far_bytes else 0.0
        held.lines[index] |= np.frombuffer(bytes([dies[row] for row in rows]), np.uint8)
        near = -half + self.dram_latency + self.late
        beyond = half + crossing + self.dram_latency + self.late
        last = max(end + (beyond if remote else near) for _, end, remote in turns)
        held.ready[index] = last
        return min(start + (beyond if remote else near) for start, _, remote in turns), last

    def _channel(self, row: int) -> int:
        """The DRAM channel that holds a row of addresses on the chip."""
        return (row * _HASH >> 40 & 0xFFFFFF) % self.channels

    def _turn(self, channel: int, row: int, at: float, service: float) -> float:
        """Start of a service by a channel. A row that none of its banks has open must be opened
        first, which nothing hides if the channel stood idle.
        """
        server, rows = self.channel[channel], self.open[channel]
        if row not in rows:
            rows[row] = None
            if len(rows) > self.rows:
                rows.popitem(last=False)
            if at > server.free:
                service += self.c.dram_open
        return server.serve(at, service)

    @property
    def moved(self) -> Moved:
        return Moved(self.dram_bytes, self.stored_bytes, self.crowded_bytes)

    @property
    def channel_busy(self) -> float:
        """clk of service of all channels together."""
        return sum(channel.busy for channel in self.channel)

    def draw(self, region: Region, host_address: int) -> float:
        """How many clk longer an access takes than the quickest one: exponentially distributed, by
        a hash of its address.
        """
        return -self.c.dram_jitter * math.log1p(-self._hash(region, host_address))

    def _hash(self, region: Region, host_address: int) -> float:
        """A number in [0, 1) for an address."""
        address = self.on_chip(region, host_address)
        return ((address >> UNIT_SHIFT) * _HASH >> 20 & 0xFFFFF) / (1 << 20)

    def write(
        self,
        at: float,
        die: int,
        region: Region,
        starts: np.ndarray,
        nbytes: int,
        part: int,
        whole: int,
        each: float = 1.0,
    ) -> float:
        """Write `nbytes` at each address. Returns the time when the L2 has taken them. part, whole:
        number of sectors that are written in part, or as a whole. each: time of a sector, in those
        of a store. Written lines go to DRAM when other lines take their place (write_back.py).
        """
        self._held(region).lines[_units(region, starts, nbytes)] = 3
        self.written_bytes += (part + whole) * self.c.l2_sector
        self._store(at, region, starts, nbytes)
        service = (whole + part * self.c.store_part) * self.sector_clk * each
        return self.stores[die].serve(at, service) + service

    def _store(self, at: float, region: Region, starts: np.ndarray, nbytes: int) -> None:
        """Count what this store, and none before it, leaves to be written back."""
        stored = self._held(region).stored
        index = _units(region, starts, nbytes, SECTOR_SHIFT)
        index = _distinct(index[~stored[index]])
        if not len(index):
            return
        stored[index] = True
        new = len(index) * int(self.c.l2_sector)
        self.stored_bytes += new
        row = self.on_chip(region, int(starts[0])) >> self.grain
        channel = self.channel[self._channel(row)]
        if channel.free > at:
            self.crowded_bytes += new
        if self.dirty is not None:
            channel.serve(at, self.dirty.store(new) * self.dram_clk)

    def on_chip(self, region: Region, address: int) -> int:
        """The device address that a host address stands for."""
        return (self.held.get(region.base) or self._held(region)).place + address - region.base

    def warm(self, region: Region) -> None:
        """Mark an allocation as held by both partitions (an earlier pass has read it)."""
        self._held(region).lines[:] = 3
