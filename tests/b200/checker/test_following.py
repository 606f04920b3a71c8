"""Clusters that follow others: the same is found as where each cluster is checked, word for word."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

import b200
from b200.checker import instrument
from b200.checker.checked import Checker
from b200.checker.following import Following
from b200.chip.gpu import Gpu
from b200.effects import FencesMemory
from tests.b200.ptx_support import kernel, run
from tests.planted_bugs.listed import PLANTED, part
from tests.planted_bugs.reports import ADDRESS, told

# Under a schedule nobody follows. An eighth with every `pytest`, all with the slow tests: each is
# launched four times.
FOLLOWED = [
    pytest.param(planted, id=planted.name, marks=() if part(planted, 8) == 0 else pytest.mark.slow)
    for planted in PLANTED
    if planted.schedule is None
]
CLUSTERS = 5
MANY = 100  # CTAs


def with_room(argument: object) -> object:
    """A tensor at the beginning of an allocation that a grid three times as large stays in: what
    lies after one, and whether a store meets it, is another in each run.
    """
    if not isinstance(argument, torch.Tensor) or not argument.is_contiguous():
        return argument
    words = argument.flatten().view(torch.uint8)
    room = torch.zeros(max(1 << 16, 4 * len(words)), dtype=torch.uint8)
    room[: len(words)] = words
    return room[: len(words)].view(argument.dtype).view(argument.shape)


def said(planted, bug: bool, check: bool | str) -> str:
    """The report of the second of two launches of a planted, in a grid of three times its clusters
    unless it has many, which all do the same.
    """
    x, y, z = planted.grid
    if x * y * z < MANY:
        x *= 3
    larger = replace(planted, grid=(x, y, z), args=lambda: list(map(with_room, planted.args())))
    _, outcome = larger.run(bug, check=check, launches=2)
    return told(outcome)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
@pytest.mark.parametrize("planted", FOLLOWED)
def test_planted_bugs_are_judged_the_same(planted, bug):
    assert said(planted, bug, True) == said(planted, bug, "all")


@dataclass
class Run:
    """A launch of CLUSTERS CTAs. followed: how many ran unchecked to their end; again: started
    again.
    """

    text: str
    counters: dict[str, int]
    result: list[int]
    followed: int
    again: int


@pytest.fixture
def launch(monkeypatch) -> Callable[..., Run]:
    """launch(body, check): 32 threads a CTA; %rd1 is `out`, %rd2 `given`, %r1 the CTA, %r2 the
    thread, %r3 the address of shared memory, %rd3 an own place in `out` for each thread.
    """
    count = {"again": 0}
    again = Checker._start_again

    def counted_again(self):
        count["again"] += 1
        again(self)

    monkeypatch.setattr(Checker, "_start_again", counted_again)

    gpus: dict[bool | str, Gpu] = {}

    def start(body: str, check: bool | str = True, given: int = 0, again: bool = False) -> Run:
        """given: the first of the numbers that %rd2 points to. again: with the GPU of the launch
        before that was checked in this way.
        """
        head = """
        ld.param.u64 %rd1, [out];
        ld.param.u64 %rd2, [given];
        mov.u32 %r1, %ctaid.x;
        mov.u32 %r2, %tid.x;
        mov.u32 %r3, dyn;
        mad.lo.u32 %r4, %r1, 32, %r2;
        mul.wide.u32 %rd9, %r4, 4;
        add.u64 %rd3, %rd1, %rd9;
        """
        out, numbers = torch.zeros(32 * CLUSTERS, dtype=torch.int32), torch.zeros(64).int()
        numbers[0] = given
        if not again:
            gpu = gpus[check] = Gpu()
            gpu.machine = b200.machine(gpu.memory, check)
        gpu = gpus[check]
        count.update(again=0)
        text = kernel(head + body, [".u64 out", ".u64 given"])
        done = run(text, out, numbers, grid=(CLUSTERS, 1, 1), smem=1024, gpu=gpu)
        assert done.findings is not None
        assert gpu.machine.started == CLUSTERS  # one that starts again counts once
        found = ADDRESS.sub("ADDRESS", "\n".join(map(str, done.findings)))
        return Run(found, done.counters, out.tolist(), done.followed, **count)

    return start


def compare(launch, body: str, **how) -> Run:
    """A launch that has to come out as where each cluster is checked."""
    found, checked = launch(body, **how), launch(body, "all", **how)
    assert checked.followed == 0
    assert (found.text, found.counters, found.result) == (
        checked.text,
        checked.counters,
        checked.result,
    )
    return found


STORE = "st.global.u32 [%rd3], %r4;"
FENCES = """
    fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    fence.proxy.async;
    fence.acq_rel.gpu;
    membar.cta;
"""
SHARED = """
    shl.b32 %r5, %r2, 2;
    add.u32 %r5, %r5, %r3;
    st.shared.u32 [%r5], %r4;
    ld.shared.u32 %r6, [%r5];
"""


def only(first: int, body: str, last: int | None = None) -> str:
    """`body` in one of the CTAs, or in some of them in a row."""
    last = first if last is None else last
    return f"""
    setp.lt.u32 %p1, %r1, {first};
    setp.gt.u32 %p2, %r1, {last};
    or.pred %p1, %p1, %p2;
    @%p1 bra after{first};
    {body}
    after{first}:
    """


@pytest.mark.parametrize("fences", ["", FENCES], ids=["", "fences"])
def test_clusters_that_do_the_same_follow_the_first(launch, fences):
    found = compare(launch, SHARED + fences + STORE)
    assert (found.followed, found.again, found.text) == (CLUSTERS - 1, 0, "")


# Lanes read what another has just stored, if the number that is given says so.
SOMETIMES = (
    SHARED
    + """
    ld.global.u32 %r8, [%rd2];
    setp.eq.u32 %p3, %r8, 0;
    @%p3 bra skipped;
    ld.shared.u32 %r6, [%r3 + 64];
    skipped:
    """
)


def test_clusters_of_a_second_launch_follow_those_of_the_first(launch):
    body = SHARED + only(2, SHARED) + STORE
    assert compare(launch, body).followed == CLUSTERS - 2
    found = compare(launch, body, again=True)
    assert (found.followed, found.again, found.text) == (CLUSTERS, 0, "")


def test_what_is_wrong_in_a_second_launch_only_is_found(launch):
    assert compare(launch, SOMETIMES + STORE).text == ""
    found = compare(launch, SOMETIMES + STORE, given=1, again=True)
    assert "without bar.warp.sync" in found.text and found.again == 1


def test_what_the_first_launch_does_wrong_is_found_in_the_second_too(launch):
    first = compare(launch, SOMETIMES + STORE, given=1)
    found = compare(launch, SOMETIMES + STORE, given=1, again=True)
    assert found.text == first.text != "" and found.followed == CLUSTERS - 1


def test_a_second_launch_that_stores_nothing_is_told(launch):
    body = "ld.global.u32 %r8, [%rd2];\nsetp.ne.u32 %p3, %r8, 0;\n@%p3 bra left;\n"
    body += STORE + "\nleft:"
    assert compare(launch, body).text == ""
    assert "stores nothing" in compare(launch, body, given=1, again=True).text


def test_memory_that_only_a_second_launch_reads_and_writes_is_seen(launch):
    """The first launch reads `given`; the second one finds there that it has to write it."""
    body = "ld.global.u32 %r8, [%rd2];\nsetp.eq.u32 %p3, %r8, 0;\n@%p3 bra left;\n"
    body += "st.global.u32 [%rd2], %r1;\nleft:" + STORE
    assert compare(launch, body).text == ""
    found = compare(launch, body, given=7, again=True)
    assert "global memory is read that another CTA writes" in found.text


def test_a_cluster_that_does_something_else_starts_again_and_is_followed_itself(launch):
    found = compare(launch, only(2, SHARED, last=3) + STORE)
    assert (found.followed, found.again, found.text) == (3, 1, "")


def test_what_only_a_later_cluster_does_wrong_is_found(launch):
    wrong = "add.u32 %r7, %r3, 64;\nld.shared.u32 %r6, [%r7];"
    found = compare(launch, SHARED.replace("ld.shared", "bar.warp.sync -1;\nld.shared") + STORE)
    assert found.text == ""
    found = compare(launch, SHARED + only(3, wrong) + STORE)
    assert "without bar.warp.sync" in found.text and found.again == 1


def test_stored_values_are_looked_at_in_every_cluster(launch):
    """Lanes that store to one address: the CTA's number, but in one CTA the thread's."""
    store = "st.shared.u32 [%r3], %r6;"
    body = "mov.u32 %r6, %r1;\nsetp.eq.u32 %p1, %r1, 3;\nselp.u32 %r6, %r2, %r1, %p1;\n" + store
    found = compare(launch, body)
    assert "different values to one address" in found.text and "(3, 0, 0)" in found.text


def test_two_ctas_that_write_one_place_are_found_though_they_follow(launch):
    """The last CTA stores where the one before it has stored."""
    body = f"min.u32 %r4, %r4, {32 * (CLUSTERS - 1) - 1};\nmul.wide.u32 %rd9, %r4, 4;\n"
    found = compare(launch, body + "add.u64 %rd3, %rd1, %rd9;\nst.global.u32 [%rd3], %r1;")
    assert "two CTAs write the same address" in found.text
    assert (found.followed, found.again) == (CLUSTERS - 2, 1)


def by_cta(value: str) -> str:
    """Each CTA stores one number to the first word of `out`. value: makes it, in %r6."""
    return f"mov.u32 %r6, 7;\n{value}\nst.global.u32 [%rd1], %r6;"


OTHER_IN = "setp.eq.u32 %p1, %r1, {0};\nselp.u32 %r6, 9, 7, %p1;"
# One CTA changes a byte to what a later one stores as a word.
BYTE_BETWEEN = """
    setp.eq.u32 %p1, %r1, 1;
    cvt.u16.u32 %rs1, 9;
    @%p1 st.global.u8 [%rd1], %rs1;
    @%p1 bra done;
    setp.gt.u32 %p2, %r1, 1;
    selp.u32 %r6, 9, 7, %p2;
"""


@pytest.mark.parametrize(
    "value, says",
    [
        ("", "(note): several CTAs store the same value"),
        ("mov.u32 %r6, %r1;", ": two CTAs write the same address"),
        (OTHER_IN.format(CLUSTERS - 1), ": two CTAs write the same address"),
        (OTHER_IN.format(1), ": two CTAs write the same address"),
        (BYTE_BETWEEN, ": two CTAs write the same address"),
    ],
    ids=["the same", "each its own", "the last another", "the second another", "a byte between"],
)
def test_ctas_that_store_one_value_are_told_from_those_that_store_several(launch, value, says):
    """A CTA that starts again does not find its own value where another has stored (PTX ISA 8.7:
    races of uniform size are defined, and equal values leave one result).
    """
    found = compare(launch, by_cta(value) + "\ndone:")
    assert says in found.text


@pytest.mark.parametrize("schedule", ["early", "late", "random:1"])
@pytest.mark.parametrize("value, is_same", [("", True), ("mov.u32 %r6, %r1;", False)])
def test_equal_values_of_ctas_are_told_in_every_order(schedule, value, is_same):
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, True, schedule=schedule)
    head = "ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.x;\n"
    text = kernel(head + by_cta(value), [".u64 out"])
    done = run(text, torch.zeros(1).int(), grid=(CLUSTERS, 1, 1), gpu=gpu)
    assert [f.severity for f in done.findings or ()] == ["note" if is_same else "error"]


def stored_twice(last: str) -> str:
    """Each thread stores the halves of its word one after the other. last: in front of the second
    store, which is to %rd10; %p1 holds in CTA 3, where %rd11 is the word of another lane, and %rd12
    that of another CTA.
    """
    return f"""
        add.u64 %rd10, %rd3, 2;
        xor.b32 %r5, %r4, 1;
        mul.wide.u32 %rd11, %r5, 4;
        add.u64 %rd11, %rd1, %rd11;
        sub.u64 %rd12, %rd3, 128;
        setp.eq.u32 %p1, %r1, 3;
        cvt.u16.u32 %rs1, %r4;
        st.global.u16 [%rd3], %rs1;
        {last}
        st.global.u16 [%rd10], %rs1;
    """


@pytest.mark.parametrize(
    "last, says, followed",
    [
        ("", "", CLUSTERS - 1),
        ("mov.u64 %rd10, %rd3;", "", CLUSTERS - 1),
        ("@%p1 mov.u64 %rd10, %rd11;", "another lane of the warp has just stored", CLUSTERS - 2),
        ("@%p1 mov.u64 %rd10, %rd12;", "two CTAs write the same address", CLUSTERS - 2),
    ],
    ids=["apart", "each its own place again", "another lane's", "another CTA's"],
)
def test_stores_of_a_cluster_that_follows_are_told(launch, last, says, followed):
    """Several stores are told at once, where there is nothing to find among them."""
    found = compare(launch, stored_twice(last))
    assert found.followed == followed and found.again == CLUSTERS - 1 - followed
    assert says in found.text if says else not found.text


def test_nobody_follows_where_memory_is_both_read_and_written(launch):
    add_one = "ld.global.u32 %r6, [%rd3];\nadd.u32 %r6, %r6, 1;\nst.global.u32 [%rd3], %r6;"
    found = compare(launch, add_one)
    assert found.followed == 0 and set(found.result) == {1}


def test_a_cluster_that_reads_what_it_has_written_starts_again(launch):
    """It is the first to do so, after a store that others have made, too."""
    add_one = "ld.global.u32 %r6, [%rd3];\nadd.u32 %r6, %r6, 1;\nst.global.u32 [%rd3], %r6;"
    found = compare(launch, STORE + only(2, add_one))
    assert (found.followed, found.again) == (1, 1)
    assert found.result == [i + (i // 32 == 2) for i in range(32 * CLUSTERS)]


def test_reading_other_memory_than_is_written_is_followed(launch):
    found = compare(launch, "ld.global.u32 %r6, [%rd2];\n" + STORE)
    assert found.followed == CLUSTERS - 1


@pytest.mark.parametrize(
    "body",
    [
        "red.global.add.u32 [%rd2], 1;",
        "ld.acquire.gpu.global.u32 %r6, [%rd2];",
        "st.release.gpu.global.u32 [%rd2], 1;",
    ],
)
def test_launches_that_synchronise_are_not_followed(launch, body):
    assert compare(launch, body + STORE).followed == 0


def test_a_rule_that_does_not_say_what_its_steps_are_sees_every_cluster(launch, monkeypatch):
    seen = []

    def rule(ins, effect, run):
        def observed(w, mask, *operands):
            seen.append(w.cta.index)
            return run(w, mask, *operands)

        return observed

    monkeypatch.setitem(instrument.WRAPPERS, FencesMemory, rule)
    assert launch("fence.acq_rel.gpu;" + STORE).followed == 0
    assert seen == [(cta, 0, 0) for cta in range(CLUSTERS)]


def test_a_fault_in_a_cluster_that_follows_is_reported_as_the_checker_does(launch):
    misaligned = "add.u64 %rd3, %rd3, 2;\nst.global.u32 [%rd3], 1;"
    texts = []
    for check in (True, "all"):
        with pytest.raises(b200.EmulatorError) as error:
            launch(SHARED + STORE + only(3, misaligned), check)
        texts.append(ADDRESS.sub("ADDRESS", str(error.value)))
    assert texts[0] == texts[1] and "(3, 0, 0)" in texts[0]


def test_a_cluster_that_waits_lets_others_begin(launch):
    """It follows, and then waits for a word that a later CTA writes: another has to begin first."""
    wait = "again: ld.global.u32 %r6, [%rd2];\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra again;"
    body = STORE + only(1, wait) + only(3, "st.global.u32 [%rd2], 1;")
    found = compare(launch, body)
    assert found.result == list(range(32 * CLUSTERS))


def test_a_checked_launch_leaves_its_clusters_to_the_collector(launch, monkeypatch):
    """They are large, and nothing of them is kept for the next launch, which may follow them."""
    clusters = []
    begin = Following.begin

    def watched(self, cluster, alone):
        clusters.append(weakref.ref(cluster))
        begin(self, cluster, alone)

    monkeypatch.setattr(Following, "begin", watched)
    launch(SHARED + STORE)
    gc.collect()
    alive = [cluster for cluster in clusters if cluster() is not None]
    assert len(clusters) == CLUSTERS and len(alive) <= 1  # the machine knows the last one


@pytest.mark.parametrize("source, read", [("%rd1", True), ("%rd2", False)])
def test_nobody_follows_where_copies_read_what_is_written(launch, source, read):
    """The asynchronous operations of a cluster are steps as its instructions are."""
    copy = f"""
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra copied;
    mbarrier.init.shared::cta.b64 [%r3+512], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+512], 16;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [{source}], 16, [%r3+512];
    again: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+512], 0;
    @!%p3 bra again;
    copied:
    """
    found = launch(copy + STORE)
    assert found.followed == (0 if read else CLUSTERS - 1)


def copied_twice(other: str) -> str:
    """Each thread copies a word into shared memory twice. other: an instruction that makes another
    source of %rd5 in front of the second copy.
    """
    return f"""
        shl.b32 %r5, %r2, 2;
        add.u32 %r5, %r5, %r3;
        mov.u64 %rd5, %rd2;
        mov.u32 %r6, 0;
        setp.eq.u32 %p1, %r1, 3;
        AGAIN: cp.async.ca.shared.global [%r5], [%rd5], 4;
        {other}
        add.u32 %r6, %r6, 1;
        setp.lt.u32 %p2, %r6, 2;
        @%p2 bra AGAIN;
        cp.async.commit_group;
        cp.async.wait_group 0;
        ld.shared.u32 %r4, [%r5];
        {STORE}
    """


def test_cp_async_is_followed(launch):
    found = compare(launch, copied_twice("add.u64 %rd6, %rd5, 4;"))
    assert found.followed == CLUSTERS - 1 and not found.text


def test_a_cp_async_from_another_source_departs(launch):
    """Two copies of different bytes to one place, with nothing between them, in CTA 3 alone."""
    found = compare(launch, copied_twice("@%p1 add.u64 %rd5, %rd5, 4;"))
    assert "CTA (3, 0, 0)" in found.text and found.again == 1
