"""The clock: what published measurements say of single units, what holds of any model."""

import gc
import json
import struct
import weakref

import pytest
import torch

from b200.chip import tensors
from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from b200.clock import (
    TABLE,
    Constants,
    Options,
    Timed,
    draw,
    profile,
    strip,
    timed_machine,
)
from b200.clock import (
    call_time as protocol,
)
from b200.clock.devices import QUARTER
from b200.clock.sm import mma_interval
from b200.clock.taint import depends_on_arithmetic
from b200.program.parse import parse
from b200.program.translate import translate
from b200.sparse import pages
from tests.b200.ptx_support import kernel, own_element, run


def timed(**options) -> Gpu:
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory, Options(**options))
    return gpu


STORE = own_element(8)


def clocks(body: str, threads: int = 32, smem: int = 0, ctas: int = 1, **options) -> list[int]:
    """What each thread reads from the clock before and after `body`, as a difference."""
    out = torch.zeros(threads * ctas, dtype=torch.int64)
    text = kernel(
        f"{STORE} mov.u64 %rd40, %clock64; {body} mov.u64 %rd41, %clock64;"
        "sub.u64 %rd42, %rd41, %rd40; st.global.u64 [%rd3], %rd42;",
        [".u64 out"],
        reqntid=threads,
    )
    run(text, out, grid=(ctas, 1, 1), block=(threads, 1, 1), smem=smem, gpu=timed(**options))
    return out.tolist()


def test_dependent_additions_take_their_latency_and_independent_ones_their_slots():
    chain = "add.f32 %r5, %r5, %r5;" * 50
    apart = "".join(f"add.f32 %r{i + 10}, %r5, %r5;" for i in range(50))
    use = "st.global.u32 [%rd3], %r5;"
    assert 4 * 49 <= clocks(chain + use)[0] <= 4.44 * 50 + 20  # QRC, AS: 4 to 4.44 clk
    assert clocks(apart + use)[0] <= 50 + 20


def test_loads_wait_where_they_are_used_and_overlap():
    """A load from DRAM takes 789 to 900 clk (QRC), two take hardly more than one."""
    one = "ld.global.u32 %r5, [%rd3]; add.u32 %r6, %r5, %r5; st.shared.u32 [1024], %r6;"
    two = (
        "ld.global.u32 %r5, [%rd3]; ld.global.u32 %r7, [%rd1+256];"
        "add.u32 %r6, %r5, %r7; st.shared.u32 [1024], %r6;"
    )
    a, b = (clocks(body, ctas=2, smem=64)[0] for body in (one, two))
    assert 600 <= a <= 1300 and b < 1.75 * a


@pytest.mark.parametrize(
    "text, issues",
    [  # SASS of sm_100a, nvcc 13.0: how often the instruction is issued for 32 lanes
        ("mbarrier.init.shared::cta.b64 [%r50], 64;", 1),  # SYNCS.EXCH.64
        ("mbarrier.arrive.shared::cta.b64 _, [%r50];", 1),  # SYNCS.ARRIVE.TRANS64.A1T0
        ("mbarrier.arrive.release.cluster.shared::cta.b64 _, [%r50];", 1),  # and MEMBAR.ALL.GPU
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r50];", 32),
    ],
    ids=lambda v: v.split(" ")[0] if isinstance(v, str) else "",
)
def test_what_a_warp_issues_once_for_all_lanes(text, issues):
    """SYNCS with an address that is the same in all lanes is one instruction; a UTCBAR stands in a
    loop of ELECT and BRA.U.ANY over the lanes.
    """
    start = "mov.b32 %r50, 1024; elect.sync _|%p1, 0xffffffff;"
    start += "@%p1 mbarrier.init.shared::cta.b64 [%r50], 100;" if "init" not in text else ""

    def cost(body: str) -> float:
        return clocks(start + body, smem=4096)[0]

    nothing, one, everyone = cost(""), cost("@%p1 " + text), cost(text)
    assert one - nothing > 5
    assert everyone - nothing == pytest.approx(issues * (one - nothing), rel=0.3, abs=5)


def test_a_warp_prefetches_a_tensormap_once():
    """UTMACCTL.PF, 40 to 57 clk (QRC): once for the lanes that name the same tensormap."""
    encoded = TensorMap(1 << 20, 7, (128, 8), (512,), (128, 8), (1, 1)).encode()

    def cost(body: str) -> int:
        out = torch.zeros(1, dtype=torch.int64)
        text = kernel(
            f"""ld.param.u64 %rd1, [out]; mov.b64 %rd2, one; cvta.param.u64 %rd2, %rd2;
            mov.b64 %rd3, two; cvta.param.u64 %rd3, %rd3; mov.u32 %r1, %tid.x;
            setp.eq.u32 %p1, %r1, 0; selp.b64 %rd4, %rd2, %rd3, %p1; mov.u64 %rd40, %clock64;
            {body} mov.u64 %rd41, %clock64; sub.u64 %rd42, %rd41, %rd40;
            @%p1 st.global.u64 [%rd1], %rd42;""",
            [".u64 out", ".align 64 .b8 one[128]", ".align 64 .b8 two[128]"],
        )
        run(text, out, encoded, encoded, gpu=timed())
        return out.item()

    nothing = cost("")
    lane, warp, both = (
        cost(f"{text};") - nothing
        for text in (
            "@%p1 prefetch.tensormap [%rd2]",
            "prefetch.tensormap [%rd2]",
            "prefetch.tensormap [%rd4]",
        )
    )
    assert 40 <= warp <= 57 and warp <= lane  # a lane alone waits for its predicate, too
    assert both - lane == pytest.approx(48, abs=10)


def test_bar_sync_takes_22_and_2_a_warp():
    got = clocks("bar.sync 0; bar.sync 0; bar.sync 0; bar.sync 0;", threads=256)
    assert 4 * (22 + 16) <= got[0] <= 4 * (22 + 16) + 80


def test_bank_conflicts_are_counted():
    free = (
        "shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, 1024; ld.shared.u32 %r6, [%r5]; "
        "st.shared.u32 [%r5], %r6;"
    )
    same = (
        "shl.b32 %r5, %r1, 7; add.u32 %r5, %r5, 1024; ld.shared.u32 %r6, [%r5]; "
        "st.shared.u32 [%r5], %r6;"
    )
    a, b = (clocks(body, smem=4096)[0] for body in (free, same))
    assert b - a == 31  # 32 wavefronts instead of one


@pytest.mark.parametrize(
    "lane, wavefronts",
    [
        ("shl.b32 %r5, %r1, 4", 4),  # NVIDIA's forum, 77228: LDS.128 returns four registers
        ("shr.u32 %r5, %r1, 5", 2),  # there: all lanes have one address, so pairs have
        ("and.b32 %r5, %r1, 15; shl.b32 %r5, %r5, 5", 8),  # NVIDIA's forum, 373160: an H100
        ("shr.u32 %r5, %r1, 4; shl.b32 %r5, %r5, 5", 2),  # there, as well
    ],
)
def test_wide_shared_loads_come_back_by_quarter_warps(lane, wavefronts):
    """lane: the address from which each lane loads 16 bytes."""
    load = "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5+1024];"
    one, nine = (clocks(f"{lane}; {load * n} add.u32 %r6, %r6, 1;", smem=4096)[0] for n in (1, 9))
    assert nine - one == 8 * wavefronts


def test_lanes_that_read_other_ctas_take_the_way_there():
    """Some lanes read their own CTA's memory, others a peer's: the latest decides."""

    def reads(rank: str) -> int:
        body = (
            "barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r5, %cluster_ctarank;"
            "mov.u32 %r6, dyn; shl.b32 %r7, %r1, 2; add.u32 %r6, %r6, %r7; xor.b32 %r8, %r5, 1;"
            f"{rank} mapa.shared::cluster.u32 %r9, %r6, %r8; mov.u64 %rd40, %clock64;"
            "ld.shared::cluster.u32 %r10, [%r9]; add.u32 %r10, %r10, 1;"
            "mov.u64 %rd41, %clock64; sub.u64 %rd42, %rd41, %rd40; st.global.u64 [%rd3], %rd42;"
            "barrier.cluster.arrive; barrier.cluster.wait;"
        )
        out = torch.zeros(64, dtype=torch.int64)
        cluster = (2, 1, 1)
        text = kernel(STORE + body, [".u64 out"])
        run(text, out, grid=cluster, block=(32, 1, 1), cluster=cluster, smem=1024, gpu=timed())
        return int(out.max())

    own, far = reads("mov.u32 %r8, %r5;"), reads("")
    some = reads("setp.eq.u32 %p1, %r1, 31; @!%p1 mov.u32 %r8, %r5;")
    assert own < far <= some <= far + 2


def test_warps_of_a_sub_core_share_its_issue_slots():
    work = "".join(f"fma.rn.f32 %r{10 + i}, %r5, %r5, %r5;" for i in range(100)) + "bar.sync 0;"
    four, sixteen = (max(clocks(work, threads=32 * n)) for n in (4, 16))
    assert four < 160 and sixteen >= 4 * 100


# %r1 is the thread: of uniform operands integers go to the uniform datapath.
LOP3 = "lop3.b32 %r{0}, %r1, %r6, %r7, 0x96;"
HFMA2 = "fma.rn.f16x2 %r{0}, %r1, %r6, %r7;"
FFMA = "fma.rn.f32 %r{0}, %r1, %r6, %r7;"
IMAD = "mad.lo.s32 %r{0}, %r1, %r6, %r7;"
ADD = "add.u32 %r{0}, %r1, %r6;"
UNPACK = "cvt.rn.f16x2.e4m3x2 %r{0}, %rs1;"


@pytest.mark.parametrize(
    "pair, each",
    [  # QRC (B300): 64 lanes a clk, FFMA2 beside LOP3 314 of 320; H200: docs/results/h200-issue.json
        ((LOP3,), 2.0),
        ((HFMA2,), 2.0),
        ((FFMA,), 1.0),
        ((ADD,), 1.0),  # QRC: two pipes
        ((HFMA2, LOP3), 2.0),  # H200 2.5, with four warps
        ((IMAD, LOP3), 2.0),  # H200 2.6
        ((UNPACK, LOP3), 4.0),  # H200 4.1: one pipe
        ((IMAD, FFMA), 3.0),  # H200 3.1: one pipe
        ((UNPACK, HFMA2), 2.0),
        ((UNPACK, HFMA2, ADD, FFMA), 4.0),  # four issues
    ],
)
def test_instructions_of_two_pipes_run_side_by_side(pair, each):
    n = 48
    work = "".join(t.format(10 + i % 30) for i in range(n) for t in pair) + "bar.sync 0;"
    found = max(clocks(work, threads=32 * 16)) / (4 * n)
    assert found == pytest.approx(each, abs=0.5)


@pytest.mark.parametrize(
    "m, n, group, a_in_tmem, measured",
    [  # SemiAnalysis umma_fit; NCU1 for the last but one
        (128, 64, 1, False, 48.0),
        (128, 112, 1, False, 60.0),
        (64, 64, 1, False, 32.0),
        (256, 80, 2, False, 45.3),
        (128, 64, 2, True, 18.0),
        (128, 128, 1, False, 64.0),
        (128, 256, 1, True, 128.0),
    ],
)
def test_mma_intervals(m, n, group, a_in_tmem, measured):
    assert mma_interval(Constants.make(), m, n, group, a_in_tmem) == pytest.approx(
        measured, abs=1.5
    )


LOAD = """
    ld.param.u64 %rd1, [out];
    mov.b64 %rd2, map;
    cvta.param.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.b32 %r9, dyn;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r9+ROWBYTES], 1;
    bar.sync 0;
    mul.lo.u32 %r5, %r2, HEIGHT;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9+ROWBYTES], ROWBYTES;
    @%p1 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes
        [%r9], [%rd3, {0, %r5}], [%r9+ROWBYTES];
    W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r9+ROWBYTES], 0;
    @!%p2 bra W;
    ld.shared.u32 %r20, [%r9];
    @%p1 st.global.u32 [%rd1], %r20;
"""


def load_tiles(ctas: int, height: int, clock_ghz: float = 1.965, **options):
    """Each CTA loads `height` rows of 512 bytes; (launch, output)."""
    matrix = torch.arange(ctas * height * 128, dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    nbytes = 512 * height
    encoded = TensorMap(
        matrix.data_ptr(), 7, (128, ctas * height), (512,), (128, height), (1, 1)
    ).encode()
    body = LOAD.replace("ROWBYTES", str(nbytes)).replace("HEIGHT", str(height))
    text = kernel(body, [".u64 out", ".align 64 .b8 map[128]"], reqntid=32)
    gpu = timed(clock_ghz=clock_ghz, **options)
    program = parse(text)
    data = bytearray(program.kernels["k"].param_bytes)
    struct.pack_into("<Q", data, 0, out.data_ptr())
    at = program.kernels["k"].params[1].offset
    data[at : at + 128] = encoded
    launch = gpu.launch(program, "k", (ctas, 1, 1), (32, 1, 1), (1, 1, 1), nbytes + 64, bytes(data))
    return launch, out


def test_many_sms_share_dram_bandwidth():
    """64 KB for every SM take at least their bytes at 7.26 TB/s; for one SM far less."""
    alone, everyone = load_tiles(1, 128)[0].time, load_tiles(148, 128)[0].time
    least = 148 * 65536 / 7.26e12 * 1e6
    assert everyone.time_us > least > 1.3
    assert everyone.time_us - alone.time_us > 0.6 * least
    assert everyone.chip.dram_bytes == 148 * 65536


def test_written_lines_in_the_l2_cost_bandwidth():
    clean, dirty = (load_tiles(148, 64, dirty_l2=d)[0].time.time_us for d in (False, True))
    assert dirty > clean + 0.3


def test_data_arrives_whatever_the_clock_says():
    for options in ({}, {"clock_ghz": 1.3}, {"arithmetic": False}):
        _, out = load_tiles(1, 8, **options)
        assert out.item() == 0  # the first element of the first tile
    slow, fast = (load_tiles(1, 8, clock_ghz=g)[0].time.time_us for g in (1.15, 1.965))
    assert slow > fast


@pytest.mark.parametrize(
    "use, decides",
    [
        ("add.u32 %r21, %r20, 1; st.global.u32 [%rd3], %r21;", False),
        ("setp.eq.u32 %p1, %r20, 1; @%p1 bra OUT; OUT:", True),
        ("add.u32 %r21, %r20, 1; st.shared.u32 [%r21], %r1;", True),
        ("setp.eq.u32 %p1, %r20, 1; @%p1 st.global.u32 [%rd3], %r1;", True),
        ("setp.eq.u32 %p1, %r1, 1; @%p1 st.global.u32 [%rd3], %r20;", False),
    ],
)
def test_kernels_that_decide_by_an_accumulator_are_noticed(use, decides):
    text = kernel(
        f"{STORE} tcgen05.ld.sync.aligned.32x32b.x1.b32 %r20, [%r30]; {use}", [".u64 out"]
    )
    program = parse(text)
    structure = translate(program, program.kernels["k"]).structure
    assert (depends_on_arithmetic(structure) is not None) == decides


def test_later_ctas_start_when_earlier_ones_end():
    """128 KB a CTA: one fits on an SM, so 2 x 148 CTAs run in two waves; a quarter of the chip, with
    a quarter of them and of the bandwidth, shows it.
    """
    one, two = (load_tiles(148 * n, 256, device=QUARTER.name)[0].time for n in (1, 2))
    wave = 148 * 131072 / 7.26e12 * 1e6
    assert two.time_us > one.time_us + wave
    assert {start for *_, start, _ in one.ctas} < {start for *_, start, _ in two.ctas}


def test_the_range_holds_the_nominal_time_and_memory_is_put_back():
    out = torch.zeros(64, dtype=torch.int32)
    body = "ld.param.u64 %rd1, [out]; mov.b32 %r5, 1; red.global.add.u32 [%rd1], %r5;"
    launch = run(kernel(body, [".u64 out"]), out, gpu=timed(sweep_constants=True))
    time = launch.time
    assert out[0] == 32 and time.low_us < time.time_us < time.high_us
    shown = protocol.reported([launch], 1)
    assert shown.low_us < shown.time_us < shown.high_us
    assert shown.time_us > protocol.reported([launch], 50).time_us  # the events' floor is shared


def test_a_range_leaves_memory_alone_that_is_freed_meanwhile(monkeypatch):
    """Found as a crash of whatever had been put into that memory since."""
    tensors.set_apart()  # else the search for tensors collects garbage before the launch
    theirs = bytes([7]) * 64
    memory = bytearray(64)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor.itself = tensor  # only a garbage collection frees it
    weakref.finalize(tensor, memory.__setitem__, slice(None), theirs)
    del tensor
    once = Timed._once

    def after_a_collection(self, *arguments):
        gc.collect()
        return once(self, *arguments)

    monkeypatch.setattr(Timed, "_once", after_a_collection)
    out = torch.zeros(64, dtype=torch.int32)
    run(kernel("ld.param.u64 %rd1, [out];", [".u64 out"]), out, gpu=timed(sweep_constants=True))
    gc.collect()
    assert memory == theirs


def test_every_constant_says_where_it_comes_from():
    grades = "measured", "published", "fitted", "derived", "unknown"
    for c in TABLE:
        assert c.grade in grades and c.source and c.value >= 0, c
        if c.grade == "fitted":
            assert any(word in c.source for word in ("SA ", "GN ", "the same", "rig ")), c
        if c.grade == "unknown":
            assert c.low is not None and c.high is not None, c
    names = [c.name for c in TABLE]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError):
        Constants.make(no_such_constant=1.0)


def test_profile_trace_and_picture(tmp_path):
    launch, _ = load_tiles(4, 64, trace=2)
    text = profile.text(launch.time)
    assert "modelled" in text and "waits for" in text and "kernel.py:1" in text
    draw.write_trace(launch.time, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert any(e.get("args", {}).get("line") == "kernel.py:1" for e in events)
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    draw.write_picture(launch.time, tmp_path / "p.png", "four tiles")
    data = (tmp_path / "p.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">2I", data[16:24])[0] > 1000


def test_a_timeline_as_a_page_says_what_each_wait_is_for(tmp_path):
    launch, _ = load_tiles(4, 64, trace=2)
    draw.write_picture(launch.time, tmp_path / "p.html", "four tiles")
    page = (tmp_path / "p.html").read_text()
    record = launch.time
    works = page.count(") works: ")
    bars = sum(1 for span in record.spans if span.cta == 0) + works
    bars += sum(1 for unit in record.units if unit[0] == 0)
    assert page.count("</title></") == page.count("<title>") - 1 == bars
    assert works >= len(profile.roles(record))
    assert "waits for" in page and "kernel.py:1" in page and "<h1>four tiles" in page
    assert f"modelled {record.time_us:.2f} us" in page and "floor" in page
    assert "src=" not in page and "<link" not in page and "url(http" not in page


def test_a_timeline_names_the_barrier_of_a_wait():
    launch, _ = load_tiles(4, 64, trace=1)
    record = launch.time
    waits = [span for span in record.spans if span.barrier]
    assert waits and all(span.what == "an mbarrier" for span in waits)
    assert {"offset 0x" in span.barrier for span in waits} == {True}
    kinds = {bar.kind for row in strip.strip_of(record).rows for bar in row.bars}
    assert {kind for kind in kinds if kind.startswith("waits for")}


def test_a_strip_goes_through_json():
    launch, _ = load_tiles(4, 64, trace=1)
    made = strip.strip_of(launch.time, "four tiles")
    assert strip.from_json(strip.to_json(made)) == made and made.rows


def test_a_timeline_ends_with_its_warp(tmp_path):
    """Warp 1 exits at once, warp 0 after four loads, each of which needs the one before."""
    out = torch.zeros(64, dtype=torch.int32)
    body = "ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 32; @%p0 bra END;"
    body += "ld.global.u32 %r1, [%rd1]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;" * 4
    body += "END: ret;"
    text = kernel(body, [".u64 out"])
    record = run(text, out, gpu=timed(trace=1), block=(64, 1, 1)).time
    exits, begin, end = record.exits, record.ctas[0][3], record.ctas[0][4]
    assert exits[0, 1] - begin < (exits[0, 0] - begin) / 4 and exits[0, 0] == end
    draw.write_trace(record, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lives = {
        e["tid"]: e["dur"] for e in events if e["ph"] == "X" and not e["name"].startswith("wa")
    }
    assert lives[1] < lives[0] / 4


@pytest.mark.parametrize(
    "waits, works",
    [
        ([], [(2, 9)]),
        ([(3, 4), (6, 7)], [(2, 3), (4, 6), (7, 9)]),
        ([(2, 5), (4, 9)], []),
        ([(8, 12)], [(2, 8)]),
    ],
)
def test_a_warp_works_where_it_does_not_wait(waits, works):
    assert list(strip.between(waits, 2, 9)) == works


def test_a_range_does_not_copy_memory_that_is_only_reserved():
    reserved = torch.frombuffer(pages(1 << 40), dtype=torch.uint8)  # no machine could
    launch = run(
        kernel("ld.param.u64 %rd1, [out];", [".u64 out"]), reserved, gpu=timed(sweep_constants=True)
    )
    assert launch.time.low_us <= launch.time.time_us <= launch.time.high_us


ASYNC = {
    "prefetch": ("cp.async.bulk.prefetch.L2.global [{}], 4096;", 1),
    "store": ("cp.async.bulk.global.shared::cta.bulk_group [{}], [%r5], 4096;", 1),
    "load": (
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [{}], 4096, [%r6];",
        32,
    ),
}


@pytest.mark.parametrize("name", ASYNC)
def test_what_sass_issues_once_for_lanes_with_equal_operands(name):
    """UBLKPF and UBLKCP.G.S stand in no loop, UBLKCP.S.G in one of ELECT and BRA.U.ANY (ptxas
    13.0). Lanes with operands of their own take a turn each.
    """
    text, issues = ASYNC[name]

    def issued(guard: str, address: str) -> int:
        out, gpu = torch.zeros(32 * 4096, dtype=torch.uint8), timed(trace=1)
        body = kernel(
            f"""ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r5, 1024;
            mov.u32 %r6, 8192; mul.wide.u32 %rd3, %r1, 4096; add.u64 %rd2, %rd1, %rd3;
            setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
            {guard}{text.format(address)}
            cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""",
            [".u64 out"],
        )
        run(body, out, gpu=gpu, smem=16384)
        return sum(unit == "TMA" for _, unit, *_ in gpu.launches[-1].time.units)

    assert issued("@%p1 ", "%rd1") == 1
    assert issued("", "%rd1") == issues and issued("", "%rd2") == 32


@pytest.mark.parametrize("guard, is_told", [("", True), ("@%p1 ", False)])
def test_a_profile_tells_when_the_l2_is_read_many_times(guard, is_told):
    """A load by all 32 lanes of each of 64 CTAs, and by one lane: each of bytes of its own."""
    out, gpu = torch.zeros(64 * 16_384, dtype=torch.uint8), timed()
    body = kernel(
        f"""ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r5, 2048; mov.u32 %r6, 1024;
        mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd3, %r2, 16384; add.u64 %rd2, %rd1, %rd3;
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
        {guard}{ASYNC["load"][0].format("%rd2").replace("4096", "16384")}""",
        [".u64 out"],
    )
    run(body, out, grid=(64, 1, 1), gpu=gpu, smem=32_768)
    told = profile.text(gpu.launches[-1].time)
    assert ("the L2 delivers 32 times" in told) == is_told
