"""Servers that are asked out of order, and the coalescer between a GPC's SMs and the L2."""

import numpy as np
import pytest
import torch

from b200.clock import Constants
from b200.clock.coalescer import Coalescer
from b200.clock.costs import cost
from b200.clock.devices import B200
from b200.clock.memory_system import MemorySystem, Server
from b200.clock.rates import EITHER, PIPES, TABLE, rate
from b200.program.module import Instr
from hopper.h200 import H200
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run


@pytest.fixture(autouse=True)
def at_the_start(monkeypatch):
    monkeypatch.setattr(Server, "now", 0.0)


def test_a_later_request_does_not_delay_an_earlier_one():
    server = Server()
    assert server.serve(1000.0, 10.0) == 1000.0
    assert server.serve(0.0, 10.0) == 0.0
    assert server.serve(995.0, 10.0) == 1005.0  # half before the first one, and half behind it
    assert server.serve(0.0, 10.0) == 10.0
    assert server.busy == 40.0


def test_no_time_is_lost_between_requests_that_come_out_of_order():
    """Four SMs ask for the same channel, one after the other in this program: each leaves a gap
    after each request that is shorter than a request, and is done when all the work is.
    """
    server = Server()
    ends = [server.serve(16.0 * i, 10.0) + 10.0 for _ in range(4) for i in range(100)]
    assert server.busy == 4000.0 and max(ends) == pytest.approx(4000.0, abs=16.0)
    assert all(end >= 16.0 * (i % 100) + 10.0 for i, end in enumerate(ends))


def test_a_request_that_fills_a_gap_ends_with_it():
    server = Server()
    server.serve(0.0, 10.0)
    server.serve(20.0, 10.0)
    server.serve(50.0, 10.0)
    assert server.serve(10.0, 10.0) == 10.0
    assert server.serve(10.0, 25.0) == 40.0  # 30 to 50, and 60 to 65


def test_gaps_in_the_past_are_gone():
    server = Server()
    server.serve(1000.0, 10.0)
    Server.now = 1000.0
    assert server.serve(1000.0, 5.0) == 1010.0


def test_requests_in_order_are_first_come_first_served():
    server, starts = Server(), []
    for at in (0.0, 1.0, 2.0, 50.0):
        Server.now = at
        starts.append(server.serve(at, 10.0))
    assert starts == [0.0, 10.0, 20.0, 50.0]


class Region:
    """An allocation as the memory system sees it."""

    base, size = 1 << 20, 1 << 16


def test_sms_of_a_gpc_share_the_answer_to_what_is_under_way():
    """Two SMs of a GPC cost the L2 one request, as the counters of SemiAnalysis' groups of 16 say
    (2.05 to 2.09 sectors filled for one of the L2); SMs of two GPCs cost two.
    """
    sms = B200.placement().sms
    for second, requests in ((sms[1], 1), (sms[-1], 2)):
        chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
        arrivals = [
            chip.read(at, sm, Region, np.array([Region.base]), 4096, 400.0)
            for at, sm in ((0.0, sms[0]), (10.0, second))
        ]
        assert chip.l2_bytes == 4096 * requests
        assert chip.coalesced_bytes == 4096 * (2 - requests)
        assert chip.dram_bytes == 4096
        assert arrivals[1][1] >= arrivals[0][1] - 400.0


def test_what_comes_from_dram_takes_the_l2():
    """H200, rig sharing: 64 SMs load 100 MB from DRAM in 23 us, in 31 beside 64 others that load
    as much from the L2. Each partition takes half of it.
    """

    class Resident(Region):
        base = 1 << 30

    placed = B200.placement().sms
    one = placed[0]
    other = next(sm for sm in placed if sm.gpc != one.gpc and sm.die == one.die)
    nbytes, begins = 4096, []
    for fill in (0.0, 2.0):
        c = Constants.make(l2_fill=fill)
        chip = MemorySystem(c, 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
        chip.warm(Resident)
        chip.read(0.0, one, Region, np.array([Region.base]), nbytes, 400.0)
        begins.append(chip.read(0.0, other, Resident, np.array([Resident.base]), nbytes, 400.0)[0])
    assert begins[1] - begins[0] == pytest.approx(2.0 * nbytes * c.l2_clock / c.l2_bandwidth)


def test_what_has_arrived_is_asked_for_again():
    chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
    sm = B200.placement().sms[0]
    _, last = chip.read(0.0, sm, Region, np.array([Region.base]), 4096, 400.0)
    chip.read(last + 1.0, sm, Region, np.array([Region.base]), 4096, 400.0)
    assert chip.l2_bytes == 8192 and chip.coalesced_bytes == 0


def test_with_much_under_way_a_share_is_merged():
    gpc, index = Coalescer(capacity=1000.0), np.array([3])
    assert gpc.merge(0.0, Region, 100, index, 0.5) is None
    gpc.sent(Region, index, 900.0, 1500)
    assert gpc.merge(0.0, Region, 100, index, 0.5, sm=1) == (900.0, 900.0)
    assert gpc.merge(0.0, Region, 100, index, 0.9, sm=2) is None
    assert gpc.merge(900.0, Region, 100, index, 0.0, sm=2) is None


def test_the_sms_of_a_tpc_merge_more():
    """SA tma_mcast, sectors filled for one of the L2 at 160 KB in flight an SM: 1.65 where the two
    of a TPC load the same, 1.23 where two of a GPC do.
    """
    for second, merged in ((3, True), (4, False)):
        gpc, index = Coalescer(capacity=1000.0, mates=3000.0), np.array([3])
        assert gpc.merge(0.0, Region, 100, index, 0.9, sm=2) is None
        gpc.sent(Region, index, 900.0, 1500, sm=2)
        assert (gpc.merge(1.0, Region, 100, index, 0.9, sm=second) is not None) == merged


def test_what_an_sm_asks_for_again_it_gets_again():
    """H200: SMs that load a tile of their own again and again take 1081 clk for 32 KB, what the L2
    can deliver; two of a GPC that load the same take 561 to 607, two of different GPCs 1070.
    """
    gpc, index = Coalescer(capacity=1e9), np.array([3])
    assert gpc.merge(0.0, Region, 100, index, 0.0, sm=0) is None
    gpc.sent(Region, index, 900.0, 1500, sm=0)
    assert gpc.merge(1.0, Region, 100, index, 0.0, sm=0) is None
    assert gpc.merge(1.0, Region, 100, index, 0.0, sm=1) == (900.0, 900.0)
    assert gpc.merge(2.0, Region, 100, index, 0.0, sm=1) is None


def test_a_multicast_shares_no_answer():
    """H200: of a dual GEMM whose clusters multicast the L2 delivers 102 MB, without clusters 59."""
    chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
    for sm in B200.placement().sms[:2]:
        chip.read(0.0, sm, Region, np.array([Region.base]), 4096, 400.0, fan_out=True)
    assert chip.l2_bytes == 8192 and chip.coalesced_bytes == 0


def test_beside_a_multicast_other_loads_share_their_answers():
    """H200: public duals, whose scales are multicast and whose tokens all 64 pairs load, take 13.0,
    18.1, 8.2 and 15.8 us; modelled with little shared beside multicasts 12 to 23 % longer, with all
    of it within 5 %.
    """
    chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
    one, other, third = B200.placement().sms[:3]
    rows = np.array([Region.base]), np.array([Region.base + 8192])
    chip.read(0.0, one, Region, rows[0], 4096, 400.0, fan_out=True)
    for sm in (other, third):
        chip.read(10.0, sm, Region, rows[1], 4096, 400.0)
    assert chip.l2_bytes == 4096 * 2


def test_what_is_lost_beside_multicasts_goes_by_their_part_of_the_bytes():
    """3000 of 4000 bytes under way are multicasts, beside which nothing would be merged: a quarter
    of the requests are, by their draw; all of them once the multicasts have arrived.
    """
    for at, draw, merged in ((1.0, 0.2, True), (1.0, 0.3, False), (600.0, 0.3, True)):
        gpc, index = Coalescer(capacity=1e9, beside_multicast=0.0), np.array([3])
        assert gpc.merge(0.0, Region, 100, index, 0.9, sm=2) is None
        gpc.sent(Region, index, 900.0, 1000, sm=2)
        gpc.multicast(500.0, 3000)
        assert (gpc.merge(at, Region, 100, index, draw, sm=4) is not None) == merged


def test_a_multicast_takes_the_port_longer():
    """H200, rig ingest: 16 KB a stage by multicast to 2 arrive at 68.6 to 71.6 B a clk in each
    of 132 SMs, half of which pass the ports; each its own at 40.4.
    """
    c = H200.constants("nominal", {"l2_bandwidth": 1e22})
    sm, took = H200.placement().sms[0], []
    for fan_out in (False, True):
        chip = MemorySystem(c, 1.98, dirty=False, cold=False, gpcs=H200.gpcs)
        at = np.array([Region.base])
        took.append(chip.read(0.0, sm, Region, at, 4096, 0.0, fan_out, rows=True)[1])
    assert 40.4 / (71.6 / 2) <= took[1] / took[0] <= 40.4 / (68.6 / 2)


def test_what_comes_from_dram_takes_both_partitions():
    """Addresses are spread over both, whoever reads them. H200: SMs of two GPCs that load the same
    from DRAM take as long whichever two these are (31 to 32 us for each of seven pairings, of GPCs
    of one partition or of both, as the latency of atomics tells).
    """
    chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
    sm, nbytes = B200.placement().sms[0], 4096
    chip.read(0.0, sm, Region, np.array([Region.base]), nbytes, 400.0)
    near, far = chip.l2[sm.die].busy, chip.l2[1 - sm.die].busy
    assert near - far == pytest.approx(nbytes * chip.l2_clk)
    assert near + far == pytest.approx((1 + chip.c.l2_fill) * nbytes * chip.l2_clk)


def test_what_lies_outside_of_a_tensor_is_asked_for():
    """H200: 128 SMs, each 48 stages of 32 KB of rows out of bounds, all of the same: 30.75 us; 64 of
    them 20.5 us; one 8.0 us, as for rows that the L2 has.
    """
    c = H200.constants("nominal", {})
    stage, stages = 2 * 128 * 128, 48

    def us(sms) -> float:
        chip, last = MemorySystem(c, 1.98, dirty=False, cold=False, gpcs=H200.gpcs), 0.0
        for _ in range(stages):
            for sm in sms:
                last = max(last, chip.outside(0.0, sm, stage, c.tma_l2)[1])
        return last / 1980

    sms = H200.placement().sms
    assert us(sms[:128]) == pytest.approx(30.75, rel=0.05)
    assert us(sms[:64]) == pytest.approx(20.5, rel=0.1)


def test_a_gpc_has_one_port():
    """H200: 8 SMs of a GPC take in 77 B a clk each, 16 of them 40, 16 of each of 7 GPCs 40, too."""
    c = H200.constants("nominal", {"l2_bandwidth": 1e22})

    def last(sms) -> float:
        chip = MemorySystem(c, 1.98, dirty=False, cold=False, gpcs=H200.gpcs)
        places = Region.base + 4096 * np.arange(len(sms))
        reads = zip(sms, places, strict=True)
        return max(
            chip.read(0.0, sm, Region, np.array([at]), 4096, 0.0, rows=True)[1] for sm, at in reads
        )

    sms = H200.placement().sms
    gpc = [sm for sm in sms if sm.gpc == 0]
    width = 4096 * sum(H200.gpcs) / len(gpc) * c.l2_clock / c.port_bandwidth
    assert last(gpc[:8]) == pytest.approx(8 * width)
    assert last(gpc[:16]) == pytest.approx(16 * width)
    assert last(gpc[:8] + [sm for sm in sms if sm.gpc == 1][:8]) == pytest.approx(8 * width)


def test_short_rows_share_no_answer_and_take_64_bytes_of_the_port():
    """H200: rows of 64 B arrive at 41 B a clk whether 1 or 4 SMs load them, rows of 32 B at 23."""
    for row, port in ((128, 128), (64, 64), (32, 64)):
        chip = MemorySystem(H200.constants("nominal", {}), 1.98, False, True, gpcs=H200.gpcs)
        for sm in B200.placement().sms[:2]:
            starts = Region.base + row * np.arange(16)
            chip.read(0.0, sm, Region, starts, row, 400.0, rows=True)
        assert chip.l2_bytes == 16 * port * (1 if row == 128 else 2)


def test_a_channel_that_stood_idle_opens_a_row_first():
    """`dram_open` is paid by a request that finds its channel idle, not by one that queues, and not
    for a row that one of its banks has open.
    """
    c = Constants.make(dram_open=1000.0, dram_rows=2)
    chip = MemorySystem(c, 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
    assert chip._turn(0, 7, 10.0, 5.0) == 10.0
    assert chip._turn(0, 8, 10.0, 5.0) == 10.0 + 5.0 + c.dram_open  # after the first and its row
    assert chip.channel_busy == 10.0 + c.dram_open
    for row, opens in ((7, 1), (9, 2), (8, 2), (7, 3)):  # the third row closes the first
        chip._turn(0, row, chip.channel[0].free + 50.0, 0.0)
        assert chip.channel_busy == 10.0 + opens * c.dram_open


def test_two_sectors_of_a_line_are_filled_as_their_bytes():
    """A warp's load asks for sectors of 32 bytes, DRAM delivers 64: the L2 takes what one piece of
    as many bytes takes.
    """
    taken = []
    for starts, nbytes in ((np.arange(0, 512, 32), 32), (np.array([0]), 512)):
        chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=True, gpcs=B200.gpcs)
        chip.read(0.0, B200.placement().sms[0], Region, Region.base + starts, nbytes, 400.0)
        taken.append((chip.l2[0].busy, chip.fabric[0].busy, chip.dram_bytes))
    assert taken[0] == taken[1]


def test_a_gpc_takes_in_less_than_its_sms_could():
    """H200: one SM takes in 116 B a clk, each of all that load the same 95."""
    chip = MemorySystem(Constants.make(), 1.965, dirty=False, cold=False, gpcs=(2,))
    alone = chip.into_gpc(0, 0.0, 100.0, 11600)
    both = chip.into_gpc(0, 0.0, 100.0, 11600)
    assert alone == 100.0
    assert both == pytest.approx(2 * 11600 / (2 * chip.c.gpc_fill))


def test_an_l2_policy_costs_an_instruction_and_no_memory():
    fractional = Instr("createpolicy.fractional.L2::evict_last.b64", ())
    assert cost(fractional) == rate("uniform integer")


def test_every_rate_has_a_name_of_its_own_and_a_grade():
    assert len({r.name for r in TABLE}) == len(TABLE)
    assert all(r.grade in ("measured", "published", "fitted", "derived", "unknown") for r in TABLE)
    assert rate("float").takes == {"fma": 1}  # 128 lanes a clk and SM, 4 clk (QuickRunCUDA)
    assert rate("float").latency == 4 and rate("integer").takes == {"alu": 2}
    assert all(set(r.takes) <= {*PIPES, EITHER} for r in TABLE)


@pytest.mark.parametrize(
    "text, sass",
    [  # nvcc 13.0, sm_100a; rates of the SASS by QuickRunCUDA (B300) and issue_cost (H200)
        ("cvt.f32.f16 %r1, %rs1;", "half to float"),  # HADD2.F32
        ("cvt.rn.f16.f32 %rs1, %r1;", "pack"),  # F2FP.F16.F32.PACK_AB
        ("cvt.rn.f16x2.f32 %r1, %r2, %r3;", "pack"),
        ("cvt.rn.bf16x2.f32 %r1, %r2, %r3;", "pack"),
        ("cvt.f32.bf16 %r1, %rs1;", "integer"),  # SHF.L
        ("cvt.rn.f16x2.e4m3x2 %r1, %rs1;", "unpack"),  # F2FP.F16.E4M3.UNPACK_B
        ("cvt.rn.satfinite.e4m3x2.f32 %rs1, %r1, %r2;", "pack"),
        ("cvt.rn.f32.s32 %r1, %r2;", "integer to float"),  # I2FP
        ("cvt.rn.f32.u8 %r1, %r2;", "integer to float"),
        ("cvt.rzi.s32.f32 %r1, %r2;", "float to integer"),  # F2I
        ("fma.rn.f16x2 %r1, %r2, %r3, %r4;", "half"),  # HFMA2
        ("add.rn.bf16x2 %r1, %r2, %r3;", "half"),
        ("fma.rn.f32 %r1, %r2, %r3, %r4;", "float"),
    ],
)
def test_conversions_and_half_arithmetic_cost_what_their_sass_does(text, sass):
    opcode, operands = text.rstrip(";").split(" ", 1)
    found = Instr(opcode, tuple(operands.split(", ")), None, False, None, text)
    assert cost(found) == rate(sass)


def test_an_atomic_writes_what_it_reads():
    """It is carried out in the L2: 32 lanes of four bytes, read and written."""
    out = torch.zeros(32, dtype=torch.int32)
    body = """ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2; atom.global.add.u32 %r2, [%rd3], 1; st.shared.u32 [1024], %r2;"""
    launch = run(kernel(body, [".u64 out"]), out, smem=64, gpu=timed())
    assert launch.time.chip.written_bytes == 128
