"""The checker as a whole: what it leaves alone, what a report of a hang adds, budgets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import b200
from b200.checker.finding import LIMIT, Findings
from b200.checker.memory.coverage import MapLoads, crosses
from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from tests.b200.host.test_driver import encode
from tests.b200.ptx_support import kernel, run
from tests.planted_bugs import clusters, cta, gemm


def planted(module, name):
    return next(c for c in module.PLANTED if c.name == name)


def test_it_changes_no_result_and_can_be_left_out():
    plain, checked = Gpu(), Gpu()
    checked.machine = b200.machine(checked.memory)
    text = kernel(
        "ld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
        "add.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;",
        [".u64 out"],
    )
    outs = [torch.zeros(32, dtype=torch.int32) for _ in range(2)]
    without = run(text, outs[0], gpu=plain)
    launch = run(text, outs[1], gpu=checked)
    assert torch.equal(*outs) and outs[0].tolist() == list(range(32))
    assert launch.findings == [] and without.findings is None


def test_findings_are_kept_once_and_up_to_a_limit():
    findings = Findings()
    assert findings.new("race", "a", "b") and not findings.new("race", "a", "b")
    for i in range(LIMIT):
        if findings.new("race", str(i), ""):
            findings.append(i)
    assert len(findings) == LIMIT and not findings.new("race", "one more", "")
    assert findings.dropped == 1


def test_a_finding_says_where_who_what_and_what_is_missing():
    source, outcome = planted(gemm, "no_wait_ld").run(True)
    finding = next(f for f in outcome.findings if f.kind == "race")
    lines = finding.message.splitlines()
    guilty, other = finding.loc, finding.other
    assert lines[0].startswith(f"{guilty}: race: ")
    assert any("this access" in line and "MMA warp 5 of CTA (0, 0, 0)" in line for line in lines)
    assert any("conflicts with" in line and other in line for line in lines)
    assert any("tensor-memory columns [0, 32)" in line for line in lines)
    assert any(line.strip().startswith("missing:") for line in lines)
    assert int(other.split(":")[1]) in source.marks["tmem load"]


def test_the_report_of_a_hang_has_causes_and_a_timeline():
    _, outcome = planted(gemm, "full_count_too_high").run(True)
    text = outcome.text
    assert text.startswith("deadlock: no warp can proceed")
    cause = text.splitlines()[1]
    assert cause.startswith("  likely cause: ")
    assert "mbarrier 0 of 6" in cause and "1 of 2 arrivals have come" in cause
    causes, _, _ = text.partition("who waits for what:")
    assert "\n    look for: a count" in causes and max(map(len, causes.splitlines())) <= 120
    timeline = text[text.index("timeline of the barriers:") :]
    assert "load warp 4 of CTA (0, 0, 0): arrive and expect_tx of 5120 bytes" in timeline
    assert "init, count 2" in timeline


def test_what_was_found_before_a_hang_stands_in_its_report():
    _, outcome = planted(gemm, "expect_too_few_bytes").run(True)
    lines = outcome.error.splitlines()
    assert lines[0].startswith("deadlock") and "found before this" in lines[0]
    assert "race" in lines[1] and lines[2].startswith("  missing: ")


def test_a_hang_without_the_checker_has_causes_too():
    one = planted(clusters, "cluster_barrier_mismatched")
    _, outcome = one.run(True)
    assert "warps that execute different numbers of barrier.cluster.arrive" in outcome.text


def test_budget_lines():
    gpu = Gpu()
    text = kernel(
        "mov.u32 %r1, dyn;\nmov.u32 %r2, %tid.x;\nsetp.ge.u32 %p1, %r2, 32;\n@%p1 bra S;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;\n"
        "ld.shared.b32 %r3, [%r1];\n"
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 64;\n"
        "S:\nsetp.ne.u32 %p2, %r2, 0;\n@%p2 bra T;\n"
        "mbarrier.init.shared::cta.b64 [%r1+8], 1;\nmbarrier.init.shared::cta.b64 [%r1+16], 1;\n"
        "T:\nbar.sync 3;\nsetmaxnreg.dec.sync.aligned.u32 40;",
        [],
        reqntid=128,
    )
    launch = run(text, block=(128, 1, 1), smem=23_245, gpu=gpu)
    lines = "\n".join(launch.budget.lines())
    assert "shared memory: 23,245 of 232,448 bytes a CTA (10 %); 9 CTA(s) fit an SM" in lines
    assert "tensor memory: 64 of 512 columns a CTA (12 %)" in lines
    assert "registers: at most 255 a thread, for 1 CTA(s) of 128 threads; setmaxnreg dec" in lines
    assert "mbarriers: 2 a CTA, 16 bytes" in lines
    assert "named barriers: 1 of 16 a CTA" in lines


def test_stores_of_neighbouring_bytes_by_two_warps_are_no_race():
    """Two warps write the two halves of words: the shadow's cells are words."""
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, dyn;
    and.b32 %r3, %r1, 31;
    shr.u32 %r4, %r1, 5;
    shl.b32 %r3, %r3, 2;
    shl.b32 %r4, %r4, 1;
    add.u32 %r3, %r3, %r4;
    add.u32 %r3, %r3, %r2;
    mov.b16 %rs1, 7;
    st.shared.b16 [%r3], %rs1;
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    launch = run(kernel(body, [], reqntid=64), block=(64, 1, 1), smem=1024, gpu=gpu)
    assert launch.findings == []


def agent(cluster: int, rank: int):
    return SimpleNamespace(cta=SimpleNamespace(rank=rank, cluster=SimpleNamespace(index=cluster)))


def test_boxes_outside_are_no_finding_where_all_of_the_tensor_is_loaded():
    """Tiles of 4 x 32 over 16 x 64, with a row of tiles beyond the edge; then without one tile."""
    tensormap = TensorMap(0, 2, (64, 16), (256,), (32, 4))
    tiles = [(x, y) for x in (0, 32) for y in range(0, 20, 4)]
    loader = agent(0, 0)
    for missing, elements in ((None, 0), (3, 128)):
        loads = MapLoads(tensormap, (None, None))
        for i, tile in enumerate(tiles):
            if i != missing:
                loads.add(loader, None, tile)
        assert loads.outside == (loader, None, (0, 16))
        assert loads.missed() == elements


@pytest.mark.parametrize(
    "starts, times, left_out",
    [
        ((0, 64), 1, (1, 16, 64, 64)),  # tiles of 64 rows, boxes of 16
        ((0,), 8, (1, 16, 128, 0)),  # as often as eight boxes would be needed
        ((0,), 1, None),  # one tile is all that is wanted
        ((0, 16, 32, 48, 64, 80, 96, 112), 1, None),
        ((0, 16), 2, None),  # a part of the tensor, without gaps
        ((0, 48), 1, None),  # in no order: pages, rows by index
        ((32, 96), 1, None),
    ],
)
def test_rows_that_boxes_leave_out(starts, times, left_out):
    loads = MapLoads(TensorMap(0, 2, (64, 128), (256,), (64, 16)), (None, None))
    loader = agent(0, 0)
    for row in starts * times:
        loads.add(loader, None, (0, row))
    assert loads.apart() == left_out


def test_a_box_that_two_ctas_of_a_cluster_load():
    for second, alike in ((agent(0, 1), True), (agent(0, 0), False), (agent(1, 1), False)):
        loads = MapLoads(TensorMap(0, 2, (64, 16), (256,), (32, 4)), (None, None))
        loads.add(agent(0, 0), None, (0, 0))
        loads.add(second, None, (0, 0))
        assert (loads.alike is not None) is alike


def overwritten_columns(read_first: bool, use: str = "add.u32 %r5, %r5, 1;"):
    """A warp loads a column of tensor memory and stores others there, with no tcgen05.wait::ld."""
    body = f"""
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
    ld.shared.b32 %r4, [%r1];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {{%r2}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [%r4];
    {use if read_first else ""}
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {{%r2}};
    {"" if read_first else use}
    tcgen05.wait::st.sync.aligned;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    return run(kernel(body, [], reqntid=32), block=(32, 1, 1), smem=1024, gpu=gpu).findings


def test_reading_a_register_waits_for_its_load():
    """PTX ISA 9.7.16.6: a true dependency through a register needs no tcgen05.wait::ld."""
    assert overwritten_columns(read_first=True) == []
    (finding,) = overwritten_columns(read_first=False)
    assert finding.kind == "race" and "tcgen05.wait::ld" in finding.message


def test_moving_a_register_does_not_wait_for_its_load():
    """The compiler may do that without the value; whoever reads the copy waits."""
    move = "mov.b32 %r6, %r5; mov.b32 %r7, %r6;"
    (finding,) = overwritten_columns(True, move)
    assert finding.kind == "race" and "tcgen05.wait::ld" in finding.message
    assert overwritten_columns(True, f"{move} add.u32 %r8, %r7, 1;") == []


def cp_async_of_lanes(distance: int):
    """Every lane copies four bytes to one place, each from `distance` bytes further on."""
    body = f"""
    ld.param.u64 %rd1, [source];
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, {distance};
    add.u64 %rd1, %rd1, %rd2;
    cp.async.ca.shared.global [%r1], [%rd1], 4;
    cp.async.wait_all;
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    text = kernel(body, [".u64 source"], reqntid=32)
    source = torch.arange(64, dtype=torch.int32)
    return run(text, source, block=(32, 1, 1), smem=1024, gpu=gpu).findings


def test_lanes_may_copy_the_same_bytes_to_one_place():
    assert cp_async_of_lanes(0) == []
    assert [f.kind for f in cp_async_of_lanes(4)] == ["race"]


def test_planted_bugs_in_one_process_do_not_disturb_each_other():
    _, first = planted(cta, "no_barrier").run(True)
    _, second = planted(cta, "no_barrier").run(False)
    assert not first.clean and second.clean


def findings_of(body: str, *given, threads: int = 32, smem: int = 2048, **launch):
    """given: the tensor that the parameter `data` points to, or nothing."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    text = kernel(body, [".u64 data" for _ in given], reqntid=threads)
    return run(text, *given, block=(threads, 1, 1), smem=smem, gpu=gpu, **launch).findings


def test_all_lanes_of_a_warp_initialise_an_mbarrier_once():
    """cutlass/pipeline/helpers.py of the CuTe DSL 4.5.2 does; twice in a row is another matter."""
    init = "mov.u32 %r1, dyn;\nmbarrier.init.shared.b64 [%r1], 4;\n"
    assert findings_of(init) == []
    (again,) = findings_of(f"{init}mbarrier.init.shared.b64 [%r1], 4;")
    assert "initialised again" in again.diagnosis and again.severity == "portability"


def neighbours(distance: int):
    """Lanes of both CTAs of a pair store words into CTA 0, `distance` bytes from lane to lane."""
    body = f"""
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %cluster_ctarank;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r1+1024], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 256;
    READY:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r4, %r1, 0;
    shl.b32 %r5, %r2, 1;
    add.u32 %r5, %r5, %r3;
    mul.lo.u32 %r5, %r5, {distance};
    add.u32 %r6, %r4, %r5;
    add.u32 %r7, %r4, 1024;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r2, [%r7];
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra DONE;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+1024], 0;
    @!%p3 bra WAIT;
    DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    return findings_of(body, grid=(2, 1, 1), cluster=(2, 1, 1))


def announced(*expected: int):
    """Findings of a thread that announces bytes for each phase, stores 4 and waits for the first."""
    store = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r4], %r2, [%r5];"
    body = """
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra DONE;
    mbarrier.init.shared::cta.b64 [%r1+1024], 1;
    fence.mbarrier_init.release.cluster;
    mapa.shared::cluster.u32 %r4, %r1, 0;
    add.u32 %r5, %r4, 1024;
    """
    for phase, nbytes in enumerate(expected):
        body += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], {nbytes};\n"
        if phase == 0:
            body += f"{store}\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+1024], 0;\n"
            body += "@!%p3 bra WAIT;\n"
    return findings_of(body + "DONE:\n")


def test_a_last_phase_that_stays_open_is_a_remark():
    """producer_tail of CUTLASS's pipelines acquires a stage, with its bytes, that it never loads."""
    assert announced(4) == []
    (found,) = announced(4, 512)
    assert "the last phase of an mbarrier stays open: 512 bytes" in found.diagnosis
    assert found.severity == "note"


def test_rows_that_only_one_cta_of_a_pair_has_written_are_a_remark():
    """A group of 40 tokens in a token tile of 128: the odd CTA has no row to load."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    source = clusters.pair_mma(True, b_of=1)
    out = torch.zeros(64, dtype=torch.int32)
    gpu.launch(source.text("k"), None, (2, 1, 1), (32, 1, 1), (2, 1, 1), source.smem, [out])
    (found,) = gpu.launches[-1].findings
    assert "tcgen05.mma reads rows in shared memory that nothing has written" in found.diagnosis
    assert found.severity == "note" and "512 bytes of it" in str(found)


def test_neighbouring_words_of_st_async_do_not_meet():
    assert neighbours(4) == []
    assert any(f.kind == "race" for f in neighbours(0))


def test_strides_that_leave_a_tensor():
    """A [64, 2, 128] tensor of 4 bytes; crosses(step, count, strides in bytes)."""
    strides = 1024, 512, 4
    for step, count in (
        (1024, 64),
        (512, 128),
        (512, 2),
        (2048, 32),
        (64, 8),
        (256, 256),
        (4, 128),
    ):
        assert not crosses(step, count, strides), step
    for step, count in ((576, 56), (768, 64), (520, 2), (1152, 4)):
        assert crosses(step, count, strides), step


def loaded(use: str):
    """Loads of a slot that nothing has written, 32 words; lane i stores 3 or what `use` makes."""
    body = f"""
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    shl.b32 %r3, %r2, 2;
    add.u32 %r3, %r3, %r1;
    ld.shared.b32 %r4, [%r3];
    mov.u32 %r5, 3;
    {use}
    st.global.u32 [%rd1], %r5;
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.arange(32, dtype=torch.int32)
    text = kernel(body, [".u64 out"], reqntid=32)
    (finding,) = run(text, out, block=(32, 1, 1), smem=1024, gpu=gpu).findings
    return finding, out.tolist()


@pytest.mark.parametrize(
    "use, reaches",
    [
        ("", False),
        ("setp.gt.u32 %p1, %r2, 31;\n@%p1 mov.u32 %r5, %r4;", False),  # of no lane
        ("setp.gt.u32 %p1, %r2, 30;\n@%p1 mov.u32 %r5, %r4;", True),  # of the last one
        ("and.b32 %r5, %r4, 0;\nadd.u32 %r5, %r5, 3;", False),
        ("setp.eq.u32 %p1, %r4, 0;\n@%p1 mov.u32 %r5, 4;", True),  # by a comparison
        ("X: setp.eq.u32 %p1, %r4, 0;\n@%p1 bra X;", True),  # it hangs with zeros there
    ],
)
def test_a_load_of_unwritten_shared_memory_is_an_error_where_it_reaches_a_result(use, reaches):
    finding, out = loaded(use)
    assert finding.kind == "uninitialised"
    assert finding.severity == ("error" if reaches else "note"), finding
    expected = [3] * 31 + [-1 if "30" in use else 3]
    assert out == expected  # what the first run has left
    assert ("on which no result of the launch depends" in finding.diagnosis) is not reaches
    if reaches:
        hangs = "bra X" in use
        assert ("the launch ends in a deadlock" if hangs else "depends on it: ") in str(finding)


def test_a_prefetch_may_be_the_first_that_a_kernel_does():
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    map_ = ".param .align 64 .b8 map[128]"
    body = "mov.b64 %rd1, map;\ncvta.param.u64 %rd2, %rd1;\nprefetch.tensormap [%rd2];"
    text = kernel(body, [map_], reqntid=32).replace(".param .param", ".param")
    x = torch.zeros(8, 64, dtype=torch.int32)
    tensormap = encode(2, x.data_ptr(), (64, 8), (256,), (32, 4), (1, 1))
    assert run(text, tensormap, block=(32, 1, 1), gpu=gpu).findings == []
