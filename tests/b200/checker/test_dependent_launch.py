"""Dependent launches: what is done before griddepcontrol.wait races with the launch before."""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source

LET = "griddepcontrol.launch_dependents;"
WAIT = "griddepcontrol.wait;"


def _kernel(name: str, body, threads: int = 64) -> str:
    """PTX of a kernel with two pointers: %rd2 is `one` and %rd3 `two` at the thread's own word."""
    k = Source(".param .u64 one, .param .u64 two", threads)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [one];")
    k("ld.param.u64 %rd1, [two];")
    k("mul.wide.u32 %rd4, %r0, 4;")
    k("add.u64 %rd2, %rd0, %rd4;")
    k("add.u64 %rd3, %rd1, %rd4;")
    body(k)
    return k.text(name)


def writer(k, let=True):
    if let:
        k(LET)
    k("st.global.u32 [%rd2], %r0;")


def reader(k, wait="all"):
    """two[thread] = one[thread]. wait: by "all" warps, the "first", or the first in front of a
    "barrier" for all; "" for none; "lanes" and "sync": by a lane of each warp, the latter in front
    of bar.warp.sync.
    """
    if wait == "all":
        k(WAIT)
    elif wait in ("lanes", "sync"):
        k("and.b32 %r8, %r0, 31;")
        k("setp.ne.u32 %p8, %r8, 0;")
        k("@%p8 bra WAITED;")
        k(WAIT)
        k("WAITED: mov.u32 %r8, 0;")
        if wait == "sync":
            k("bar.warp.sync -1;")
    elif wait:
        k.only(0, lambda: k(WAIT), 31)
    if wait == "barrier":
        k("bar.sync 0;")
    k("ld.global.u32 %r5, [%rd2];", "read")
    k("st.global.u32 [%rd3], %r5;")


def copier(k, wait):
    """two[thread] = one[thread], through a bulk copy."""

    def load():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
        k("fence.mbarrier_init.release.cluster;")
        if wait:
            k(WAIT)
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 256;")
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
            "[%r1+1024];"
        )

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("ld.shared.u32 %r5, [%r3];")
    if not wait:
        k(WAIT)
    k("st.global.u32 [%rd3], %r5;")


def overwriter(k, wait):
    """one[thread] = 7"""
    if wait:
        k(WAIT)
    k("st.global.u32 [%rd2], 7;")


def early_reader(k):
    """Lets its dependents start, then reads."""
    k(LET)
    k("ld.global.u32 %r5, [%rd2];")
    k("st.global.u32 [%rd3], %r5;")


def bystander(k, wait):
    """Touches only `two`, and lets its dependents start."""
    if wait:
        k(WAIT)
    k(LET)
    k("st.global.u32 [%rd3], 1;")


def adder(k, first="", instruction="red.relaxed.gpu.global.add.u32 [%rd2], 1;"):
    """Adds to `one`, or reads or writes it strongly, after a plain access, without a wait."""
    k(LET)
    if first:
        k(first)
    k(instruction)


def _run(*launches) -> list:
    """Findings of launches (body, options of the body, (one, two), dependent)."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    found = []
    for number, (body, options, tensors, dependent) in enumerate(launches):
        text = _kernel(f"{body.__name__}_{number}", lambda k, b=body, o=options: b(k, **o))
        shape = (1, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000
        launch = gpu.launch(text, None, *shape, list(tensors), dependent=dependent)
        found += launch.findings or []
    return found


def _tensors(count: int = 3) -> list[torch.Tensor]:
    return [torch.zeros(64, dtype=torch.int32) for _ in range(count)]


@pytest.mark.parametrize("wait", ["", "first"])
def test_a_read_before_the_wait_is_named(wait):
    x, y, _ = _tensors()
    (found,) = _run((writer, {}, (x, y), False), (reader, {"wait": wait}, (x, y), True))
    assert found.severity == "error"
    assert "is read that writer_0, a launch before, writes, with no griddepcontrol.wait" in str(
        found
    )
    assert "writer_0 writes it at writer_0.ptx:" in str(found)
    assert ("by warp 1" if wait else "by warp 0") in str(found)


def test_a_wait_by_one_lane_is_its_own():
    x, y, _ = _tensors()
    (found,) = _run((writer, {}, (x, y), False), (reader, {"wait": "lanes"}, (x, y), True))
    assert found.severity == "portability"
    text = "with no griddepcontrol.wait by lanes 1-31: another lane of the warp has waited"
    assert text in str(found)


@pytest.mark.parametrize("wait", ["all", "barrier", "sync"])
def test_a_read_behind_the_wait_is_right(wait):
    x, y, _ = _tensors()
    assert not _run((writer, {}, (x, y), False), (reader, {"wait": wait}, (x, y), True))
    assert torch.equal(y, torch.arange(64, dtype=torch.int32))


def test_nothing_overlaps_without_the_attribute_or_the_signal():
    x, y, _ = _tensors()
    assert not _run((writer, {}, (x, y), False), (reader, {"wait": ""}, (x, y), False))
    assert not _run((writer, {"let": False}, (x, y), False), (reader, {"wait": ""}, (x, y), True))


@pytest.mark.parametrize("wait", [False, True])
def test_a_bulk_copy_reads_too(wait):
    x, y, _ = _tensors()
    found = _run((writer, {}, (x, y), False), (copier, {"wait": wait}, (x, y), True))
    assert bool(found) is not wait


@pytest.mark.parametrize("wait", [False, True])
def test_a_write_over_what_the_launch_before_reads(wait):
    x, y, _ = _tensors()
    found = _run((early_reader, {}, (x, y), False), (overwriter, {"wait": wait}, (x, y), True))
    assert bool(found) is not wait
    assert all("is written that early_reader_0, a launch before, reads" in str(f) for f in found)


@pytest.mark.parametrize("wait", [False, True])
def test_a_wait_does_not_cover_what_the_launch_between_has_not_waited_for(wait):
    x, y, z = _tensors()
    found = _run(
        (writer, {}, (x, y), False),
        (bystander, {"wait": wait}, (x, z), True),
        (reader, {"wait": "all"}, (x, y), True),
    )
    assert bool(found) is not wait
    assert all("in the launch that lies between them" in str(f) for f in found)


STRONG = ("ld.acquire.gpu.global.u32 %r5, [%rd2];", "st.relaxed.gpu.global.u32 [%rd2], 1;")


@pytest.mark.parametrize(
    ("first", "options", "found"),
    [
        ("", {}, False),
        *(("", {"instruction": strong}, False) for strong in STRONG),
        ("st.global.u32 [%rd2], 1;", {}, True),
        ("ld.global.u32 %r5, [%rd2];", {}, True),
        ("", {"instruction": "ld.global.u32 %r5, [%rd2];"}, True),
        ("", {"instruction": "st.global.u32 [%rd2], 1;"}, True),
    ],
)
def test_atomics_and_strong_accesses_of_two_launches_may_meet(first, options, found):
    """PTX ISA 8.7: morally strong accesses are no race. A plain one beneath them is."""
    x, y, _ = _tensors()
    launches = (adder, {"first": first}, (x, y), False), (adder, options, (x, y), True)
    assert bool(_run(*launches)) is found


def test_a_plain_launch_ends_the_chain():
    x, y, z = _tensors()
    assert not _run(
        (writer, {}, (x, y), False),
        (bystander, {"wait": False}, (z, z), False),
        (reader, {"wait": "all"}, (x, y), True),
    )


CTAS = 5


def own(k):
    """A CTA's own 64 words of `one`: %rd2 moves on to them."""
    k("mov.u32 %r8, %ctaid.x;")
    k("mad.wide.u32 %rd2, %r8, 256, %rd2;")


def each_writes(k):
    """Each CTA writes its own words, ahead of nothing that it waits for."""
    k(LET)
    own(k)
    k("st.global.u32 [%rd2], %r0;")


def last_read(k, wait):
    """All CTAs read what the last CTA of the launch before writes."""
    if wait:
        k(WAIT)
    k(f"ld.global.u32 %r5, [%rd2+{256 * (CTAS - 1)}];")
    k("mov.u32 %r8, %ctaid.x;")
    k("mad.wide.u32 %rd3, %r8, 256, %rd3;")
    k("st.global.u32 [%rd3], %r5;")


def last_writes_first(k, last):
    """All CTAs write behind the wait, but CTA `last` does ahead of it."""
    k("mov.u32 %r8, %ctaid.x;")
    k(f"setp.eq.u32 %p8, %r8, {last};")
    k("@%p8 bra FIRST;")
    k(WAIT)
    k("FIRST: mad.wide.u32 %rd2, %r8, 256, %rd2;")
    k("st.global.u32 [%rd2], 7;")
    k(LET)


def _grids(check, *launches) -> tuple[list[str], list[int]]:
    """What is found in launches of CTAS CTAs, and how many clusters of each followed."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check)
    found, followed = [], []
    for body, options, tensors in launches:
        text = _kernel(body.__name__, lambda k, b=body, o=options: b(k, **o))
        shape = (CTAS, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000
        launch = gpu.launch(text, None, *shape, list(tensors), dependent=True)
        found += map(str, launch.findings or ())
        followed.append(launch.followed)
    return found, followed


@pytest.mark.parametrize("wait", [False, True])
def test_what_clusters_that_follow_write_is_in_the_footprint(wait):
    """The reader meets the write of a cluster that followed; all of its own follow the first."""
    x, y = (torch.zeros(64 * CTAS, dtype=torch.int32) for _ in range(2))
    launches = (each_writes, {}, (x, x)), (last_read, {"wait": wait}, (x, y))
    found, followed = _grids(True, *launches)
    assert bool(found) is not wait and followed[0] == CTAS - 1
    assert all("is read that each_writes, a launch before, writes" in text for text in found)
    assert (followed[1] == CTAS - 1) is wait  # without a wait each cluster is looked at
    everything, none = _grids("all", *launches)
    assert found == everything and none == [0, 0]


def test_a_cluster_that_does_not_wait_is_found_behind_others_that_follow():
    x, y = (torch.zeros(64 * CTAS, dtype=torch.int32) for _ in range(2))
    right, bug = ({"last": last} for last in (CTAS, CTAS - 1))
    before = each_writes, {}, (x, y)
    found, followed = _grids(True, before, (last_writes_first, right, (x, y)))
    assert (found, followed) == ([], [CTAS - 1, CTAS - 1])
    found, _ = _grids(True, before, (last_writes_first, bug, (x, y)))
    assert found == _grids("all", before, (last_writes_first, bug, (x, y)))[0]
    assert len(found) == 1 and "with no griddepcontrol.wait" in found[0]
