"""Copies and global memory: what bulk copies write beside other writes of their warp, who waits for
them, and sources that are written before they are read. Each crime has a twin.
"""

import pytest
import torch

import b200
from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source
from tests.planted_bugs.cta import start

STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1{}], 128;"
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1{}], 128;"
COMMIT = "cp.async.bulk.commit_group;"
DONE = f"{COMMIT} cp.async.bulk.wait_group 0;"
READ = f"{COMMIT} cp.async.bulk.wait_group.read 0;"
PLAIN = "st.global.u32 [%rd0+4], 7;"
FENCE = "fence.proxy.async;"


def found(*body: str) -> list[tuple[str, str]]:
    """(kind, severity) of each finding on a CTA of two warps, of which each thread stores a word in
    shared memory at %r1. Thread 0 then does what `body` says; what begins with @ all do.
    """
    k = start(64)
    k("setp.eq.u32 %p0, %r0, 0;")
    k("setp.eq.u32 %p1, %r0, 1;")
    k("setp.eq.u32 %p2, %r0, 32;")
    k("st.shared.u32 [%r3], %r0;")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    for part in (part.strip() for line in body for part in line.split(";") if part.strip()):
        k(f"{'' if part[0] == '@' else '@%p0 '}{part.removeprefix('@all ')};")
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(64, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000, (out,))
    return [(finding.kind, finding.severity) for finding in launch.findings or ()]


ERROR = [("global", "error")]


@pytest.mark.parametrize(
    "first, between, second, wanted",
    [
        (STORE.format(""), READ, STORE.format("+128"), ERROR),
        (STORE.format(""), DONE, STORE.format("+128"), []),
        (STORE.format(""), READ, ADD.format("+128"), ERROR),
        (ADD.format(""), COMMIT, ADD.format("+128"), []),
        (ADD.format(""), COMMIT, PLAIN, ERROR),
        (ADD.format(""), DONE, PLAIN, []),
        (PLAIN, "", ADD.format(""), [("proxy", "portability")]),
        (PLAIN, FENCE, ADD.format(""), []),
        (PLAIN, "", STORE.format(""), [("proxy", "portability")]),
    ],
)
def test_two_writes_of_one_thread(first, between, second, wanted):
    assert found(first, between, second, DONE) == wanted


def by_second_warp(*instructions: str) -> str:
    """Instructions of thread 32."""
    return "; ".join(f"@%p2 {i.strip()}" for line in instructions for i in line.split(";") if i)


LOAD = "ld.global.u32 %r5, [%rd0+4];"


@pytest.mark.parametrize("between, wanted", [("", ERROR), ("@all bar.sync 0;", [])])
@pytest.mark.parametrize("write", [STORE.format(""), ADD.format("")])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_bulk_write_over_what_another_warp_has_read(reader, write, between, wanted):
    """Whichever warp the order takes first: one of the two readers comes before the write."""
    if reader:
        assert found(by_second_warp(LOAD), between, write, DONE) == wanted
    else:
        assert found(LOAD, between, by_second_warp(write, DONE)) == wanted


@pytest.mark.parametrize("between, wanted", [("", ERROR), ("@all bar.sync 0;", [])])
@pytest.mark.parametrize("access", [LOAD, PLAIN, STORE.format("")])
def test_a_reduction_of_another_warp_beneath_ones_own(access, between, wanted):
    """What the thread's own reduction covers is still to be ordered before its weak accesses."""
    second = by_second_warp(ADD.format(""), DONE)
    assert found(ADD.format(""), DONE, second, between, by_second_warp(access, DONE)) == wanted


def test_reductions_do_not_conflict():
    second = by_second_warp(ADD.format(""), DONE)
    assert found(ADD.format(""), DONE, second, ADD.format(""), DONE) == []


@pytest.mark.parametrize("waits, wanted", [("@%p0", []), ("@%p1", ERROR)])
def test_a_thread_waits_for_its_own_bulk_groups(waits, wanted):
    wait = f"{waits} cp.async.bulk.wait_group 0;"
    read = "@all bar.sync 0; @%p2 ld.global.u32 %r5, [%rd0+4];"
    errors = found(STORE.format(""), COMMIT, wait, read, DONE)
    assert errors == wanted


@pytest.mark.parametrize("fence", [True, False])
def test_a_load_over_what_threads_have_stored(fence):
    k = start(64)
    k("setp.eq.u32 %p0, %r0, 0;")
    k("@%p0 mbarrier.init.shared::cta.b64 [%r1+512], 1;")
    k("@%p0 fence.mbarrier_init.release.cluster;")
    k("st.shared.u32 [%r3], %r0;")
    if fence:
        k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k("@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+512], 256;")
    k(
        "@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
        "[%r1+512];"
    )
    k.wait("%r1+512", 0)
    k("ld.shared.u32 %r5, [%r3];")
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    source = torch.zeros(64, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000, (source,))
    kinds = [(finding.kind, finding.severity) for finding in launch.findings or ()]
    assert kinds == ([] if fence else [("proxy", "portability")])


COPIES = {
    "bulk": (
        (
            "@%p0 mbarrier.init.shared::cta.b64 [%r1+512], 1;",
            "@%p0 fence.mbarrier_init.release.cluster;",
            "bar.sync 0;",
            "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+512], 256;",
            "@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], "
            "256, [%r1+512];",
        ),
        (
            "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r1+512], 0;",
            "@!%p9 bra WAIT;",
        ),
    ),
    "cp.async": (
        ("cp.async.ca.shared.global [%r3], [%rd9], 4;",),
        ("cp.async.wait_all;", "bar.sync 0;"),
    ),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("writer", ["%p0", "%p2"])
@pytest.mark.parametrize("how", COPIES)
def test_a_source_that_is_written_while_it_is_copied(how, writer, waits):
    """By a thread that has issued the copy, or by another warp."""
    copy, wait = COPIES[how]
    k = start(64)
    k("setp.eq.u32 %p0, %r0, 0;")
    k("setp.eq.u32 %p2, %r0, 32;")
    k("mul.wide.u32 %rd9, %r0, 4;")
    k("add.u64 %rd9, %rd9, %rd0;")
    write = f"@{writer} st.global.u32 [%rd0], 7;"
    for line in (*copy, *((*wait, write) if waits else (write, *wait))):
        k(line)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    source = torch.zeros(64, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000, (source,))
    kinds = [(finding.kind, finding.severity) for finding in launch.findings or ()]
    assert kinds == ([] if waits else ERROR)


# every lane of warp 0 comes to the copy, as in code of the CuTe DSL, which elects nobody for a store
ALL = "@all setp.lt.u32 %p3, %r0, 32; "
WHOLE = f"{ALL} @%p3 {STORE}"
WAITED = f"@%p3 {COMMIT} @%p3 cp.async.bulk.wait_group 0;"


@pytest.mark.parametrize(
    "body, wanted",
    [
        ((WHOLE.format(""), WAITED), []),
        ((WHOLE.format("+128"), WAITED, WHOLE.format(""), WAITED), []),
        ((WHOLE.format("+128"), f"@%p3 {COMMIT}", WHOLE.format(""), WAITED), ERROR),
        ((f"@all and.b32 %r1, %r3, 0xfffffff0; {WHOLE.format('')}", WAITED), ERROR),
    ],
    ids=["one copy", "two that wait", "two under way", "a source for each four lanes"],
)
def test_a_copy_that_every_lane_of_a_warp_issues(body, wanted):
    assert [told for told in found(*body) if told != ("protocol", "note")] == wanted


def stored_boxes(source: str, times: int, wait: str) -> list[tuple[str, str]]:
    """Findings of a warp whose lanes all store one box, `times` times, coordinates in registers of
    their own. source: adds to a lane's source in %r5.
    """
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", 32)
    k(f"mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; {FENCE}")
    k("st.shared.u32 [%r3], %r0; st.shared.u32 [%r3+128], %r0; fence.proxy.async.shared::cta;")
    k("bar.sync 0; mov.u32 %r6, 0; mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;")
    k(f"sub.u32 %r4, %r0, %r0; {source}")
    k("LOOP: add.u32 %r6, %r6, 1;")
    k("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd1, {%r4}], [%r1];")
    k(f"{COMMIT} {wait} setp.lt.u32 %p0, %r6, {times}; @%p0 bra LOOP; {DONE}")
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(32, dtype=torch.int32)
    box = TensorMap(out.data_ptr(), 2, (32,), (), (32,)).encode()
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0x8000, (box, out))
    return [(finding.kind, finding.severity) for finding in launch.findings or ()]


@pytest.mark.parametrize(
    "source, times, wait, wanted",
    [
        ("", 1, "", []),
        ("", 3, "cp.async.bulk.wait_group 0;", []),
        ("", 2, "", ERROR),
        ("and.b32 %r5, %r0, 1; shl.b32 %r5, %r5, 7; add.u32 %r1, %r1, %r5;", 1, "", ERROR),
    ],
    ids=["one box", "three that wait", "two under way", "two sources"],
)
def test_a_box_that_every_lane_of_a_warp_stores(source, times, wait, wanted):
    assert stored_boxes(source, times, wait) == wanted


BOX_STORE = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group"
BOX_ADD = "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group"


@pytest.mark.parametrize("name", [BOX_STORE, BOX_ADD])
@pytest.mark.parametrize("waits, wanted", [(0, []), (1, [("race", "error")])])
def test_groups_of_boxes_are_each_lanes_own(name, waits, wanted):
    """Lanes 0 and 1 store a box each; lane `waits` waits, and lane 0's source is written anew."""
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", 32)
    k(f"mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; {FENCE}")
    k("st.shared.u32 [%r3], %r0; st.shared.u32 [%r3+128], %r0; fence.proxy.async.shared::cta;")
    k("bar.sync 0; mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;")
    for lane, at in ((0, ""), (1, "+128")):
        k.only(lane, lambda lane=lane, at=at: k(f"{name} [%rd1, {{{32 * lane}}}], [%r1{at}];"))
        k.only(lane, lambda: k(COMMIT))
    k.only(waits, lambda: k("cp.async.bulk.wait_group.read 0;"))
    k("bar.warp.sync -1; st.shared.u32 [%r3], 7;")
    k.only(0, lambda: k("cp.async.bulk.wait_group 0;"), 1)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(64, dtype=torch.int32)
    box = TensorMap(out.data_ptr(), 2, (64,), (), (32,)).encode()
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0x8000, (box, out))
    assert [(finding.kind, finding.severity) for finding in launch.findings or ()] == wanted
