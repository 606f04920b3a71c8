"""Launches of two queues that nothing orders race as two warps do (b200/checker/launches/other_queues.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import b200
from b200.checker.launches.other_queues import commute
from b200.chip import repeated
from b200.chip.gpu import Gpu, pack
from b200.chip.launch import Shape
from b200.host.captures import KernelWork
from b200.host.queues import DEFAULT, HOST
from b200.host.replay import Replay
from b200.host.runtime import Runtime
from b200.program.module import Instr, Reg
from b200.program.parse import parse
from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.case import Source
from tests.planted_bugs.cta import start, store_own

A, B, BLOCKING = 0x1010, 0x1020, 0x1030


def writes() -> Source:
    k = start(32)
    store_own(k, "%r0")
    return k


def reads() -> Source:
    k = start(32, ".param .u64 of, .param .u64 out")
    k("shl.b32 %r5, %r0, 2;")
    k("cvt.u64.u32 %rd5, %r5;")
    k("add.u64 %rd6, %rd0, %rd5;")
    k("ld.global.u32 %r6, [%rd6];", "read")
    store_own(k, "%r6", "%rd1")
    return k


def adds() -> Source:
    k = start(32)
    k("red.global.add.u32 [%rd0], %r0;")
    return k


def meets() -> Source:
    """Two CTAs count, and wait until both have."""
    k = start(32, ".param .u64 count")
    k("setp.eq.u32 %p1, %r0, 0;")
    k("@%p1 red.release.gpu.global.add.u32 [%rd0], 1;")
    k("AGAIN: ld.acquire.gpu.global.u32 %r5, [%rd0];", "wait")
    k("setp.lt.u32 %p2, %r5, 2;")
    k("@%p2 bra AGAIN;")
    return k


def copies() -> Source:
    """out[i] = of[i], each CTA 32 words of its own."""
    k = start(32, ".param .u64 of, .param .u64 out")
    k("mov.u32 %r5, %ctaid.x; shl.b32 %r5, %r5, 5; add.u32 %r0, %r0, %r5;")
    k("mul.wide.u32 %rd5, %r0, 4; add.u64 %rd6, %rd0, %rd5;")
    k("ld.global.u32 %r6, [%rd6];", "read")
    store_own(k, "%r6", "%rd1")
    return k


class Program:
    """A host program over three queues."""

    def __init__(self):
        self.runtime = Runtime(Gpu())
        self.runtime.gpu.machine = b200.machine(self.runtime.gpu.memory, True)
        self.queues = self.runtime.queues
        for queue in (A, B):
            self.queues.made(queue, non_blocking=True)
        self.queues.made(BLOCKING, non_blocking=False)
        self.data, self.out, self.other = (torch.zeros(64, dtype=torch.int32) for _ in range(3))
        self.kernels = {
            k.__name__: parse(k().text(k.__name__)) for k in (writes, reads, adds, meets, copies)
        }

    def launch(
        self, name: str, queue: int, *args: torch.Tensor, ctas: int = 1, cooperative: bool = False
    ):
        program = self.kernels[name]
        params = pack(program.kernels[name], args)
        shape = Shape((ctas, 1, 1), (32, 1, 1), (1, 1, 1), 1024)
        self.runtime.launch(KernelWork(program, name, shape, params, cooperative), queue)

    def write(self, queue: int):
        self.launch("writes", queue, self.data)

    def read(self, queue: int):
        self.launch("reads", queue, self.data, self.out)

    @property
    def findings(self):
        return [f for launch in self.runtime.gpu.launches for f in launch.findings or ()]


def test_a_reader_in_another_queue_is_named():
    program = Program()
    program.write(A)
    program.read(B)
    (found,) = program.findings
    assert "read that writes, work of another queue, writes, with no event" in found.diagnosis
    assert (found.loc, found.other) == ("reads.ptx:10", "writes.ptx:8")
    assert f"records after writes and queue {B:#x} waits for" in str(found)
    assert unexplained(program.findings) == []


def test_a_writer_behind_a_reader_is_named():
    program = Program()
    program.read(A)
    program.write(B)
    (found,) = program.findings
    assert "written that reads, work of another queue, reads" in found.diagnosis


CTAS = 40
MANY = 32 * CTAS  # words


def many(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    """Has a grid copied in queue A, whose CTAs run abreast; what it has read, and written."""
    of, to = torch.arange(MANY, dtype=torch.int32), torch.zeros(MANY, dtype=torch.int32)
    program.launch("copies", A, of, to, ctas=CTAS)
    assert program.runtime.gpu.launches[-1].followed > CTAS // 2 and torch.equal(of, to)
    return of, to


@pytest.mark.parametrize("first", [0, MANY - 32])
def test_what_ctas_abreast_have_written_is_known(first):
    program = Program()
    _, to = many(program)
    program.launch("reads", B, to[first:], program.out)
    (found,) = program.findings
    assert "read that copies, work of another queue, writes" in found.diagnosis
    assert found.other == "copies.ptx:12"


@pytest.mark.parametrize("first", [0, MANY - 32])
def test_what_ctas_abreast_have_read_is_known(first):
    program = Program()
    of, _ = many(program)
    program.launch("writes", B, of[first:])
    (found,) = program.findings
    assert "written that copies, work of another queue, reads" in found.diagnosis


def test_ctas_abreast_and_an_event_are_clean():
    program = Program()
    of, to = many(program)
    event(program.queues)
    program.launch("writes", B, of)
    program.launch("reads", B, to, program.out)
    assert program.findings == []


def test_a_launch_that_is_answered_leaves_a_footprint(monkeypatch):
    monkeypatch.setattr(repeated, "WORTH_WHILE", 0.0)
    monkeypatch.setattr(repeated, "LOOKED_AT", float("inf"))
    program = Program()
    of, to = (torch.arange(MANY, dtype=torch.int32) for _ in range(2))
    for _ in range(4):
        program.launch("copies", A, of, to, ctas=CTAS)
        program.queues.finished()
    program.launch("copies", A, of, to, ctas=CTAS)
    assert len({id(x.counters) for x in program.runtime.gpu.launches}) < 5  # reports of an earlier
    program.launch("reads", B, to, program.out)
    assert len(program.findings) == 1


def event(queues):
    queues.recorded(1, A)
    queues.waits(B, 1)


ORDERS: dict[str, Callable] = {
    "event": event,
    "wait_stream": lambda queues: queues.joins(B, A),
    "the host waits for the queue": lambda queues: queues.joins(HOST, A),
    "the host waits for all": lambda queues: queues.finished(),
}


@pytest.mark.parametrize("how", ORDERS)
def test_what_is_ordered_is_clean(how):
    program = Program()
    program.write(A)
    ORDERS[how](program.queues)
    program.read(B)
    assert program.findings == []


def test_an_event_before_the_launch_orders_nothing():
    program = Program()
    event(program.queues)
    program.write(A)
    program.queues.waits(B, 1)
    program.read(B)
    assert len(program.findings) == 1


def test_the_default_queue_orders_those_that_block():
    """And hands on the order of one to the next."""
    program = Program()
    program.write(BLOCKING)
    program.launch("writes", DEFAULT, program.other)
    program.read(BLOCKING)
    assert program.findings == []
    program.write(DEFAULT)
    program.read(A)
    assert len(program.findings) == 2  # the data, and what both readers write


def runs(program: Program, *graphs: tuple[int, ...]) -> None:
    """Graphs run that write, read, and write again: once in queue A for each, then in queue B.
    after: for each graph, how many nodes the second and the third come after.
    """
    kinds = ("writes", program.data), ("reads", program.data, program.out), ("writes", program.data)
    works = []
    for name, *args in kinds:
        kernel = program.kernels[name]
        shape = Shape((1, 1, 1), (32, 1, 1), (1, 1, 1), 1024)
        works.append(KernelWork(kernel, name, shape, pack(kernel.kernels[name], args)))
    replays = [Replay(program.runtime, program.runtime.put) for _ in graphs]
    for queue in (A, B):
        for replay, after in zip(replays, graphs, strict=True):
            before = ((), range(after[0]), range(after[1]))
            nodes = {i: (before[i], (work,)) for i, work in enumerate(works)}
            replay.run(nodes, queue)


@pytest.mark.parametrize(
    "graphs, findings",
    [
        ([(1, 2)], 0),  # one after the other; one graph in two queues
        ([(0, 2)], 1),  # reads beside what writes
        ([(1, 1)], 1),  # writes again beside what reads
        ([(1, 2), (1, 2)], 4),  # two graphs: what is written, read, written over, and put out
    ],
)
def test_nodes_of_a_graph_are_ordered_by_edges_and_its_runs_by_the_graph(graphs, findings):
    program = Program()
    runs(program, *graphs)
    assert len({f.diagnosis + f.loc + str(f.other) for f in program.findings}) == findings


def test_one_queue_and_memory_of_its_own_are_clean():
    program = Program()
    program.write(A)
    program.read(A)
    program.launch("writes", B, program.other)
    assert program.findings == []


def test_atomics_of_two_queues_may_meet():
    program = Program()
    program.launch("adds", A, program.data)
    program.launch("adds", B, program.data)
    assert program.findings == []
    program.write(B)
    assert len(program.findings) == 1


@pytest.mark.parametrize("how", ("ordinary", "cooperative", "ordered", "one CTA"))
def test_ctas_that_wait_for_one_another_beside_another_grid(how):
    program = Program()
    for queue, count in ((A, program.data), (B, program.other)):
        if how == "ordered" and queue == B:
            program.queues.joins(B, A)
        ctas = 1 if how == "one CTA" else 2
        if ctas == 1:
            count[0] = 1
        program.launch("meets", queue, count, ctas=ctas, cooperative=how == "cooperative")
    assert unexplained(program.findings) == []
    said = [(f.kind, f.severity) for f in program.findings]
    assert said == ([("deadlock", "portability")] if how == "ordinary" else [])


ATOMIC = ("atom.global.add.u32", "red.global.add.u32", "atom.acquire.gpu.global.cas.b32")
REDUCED = ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32",)
STRONG = ("ld.relaxed.gpu.global.u32", "st.release.gpu.global.u32", "ld.volatile.global.u32")
WEAK = ("ld.global.u32", "st.global.u32", "cp.async.bulk.global.shared::cta.bulk_group")


@pytest.mark.parametrize("one", [*ATOMIC, *REDUCED, *STRONG, *WEAK, None])
@pytest.mark.parametrize("other", [*ATOMIC, *REDUCED, *STRONG, *WEAK, None])
def test_which_accesses_may_meet(one, other):
    """Atomics and reductions may meet each other, strong accesses each other and atomics."""
    both = {one, other}
    may = None not in both and (both <= {*ATOMIC, *REDUCED} or both <= {*ATOMIC, *STRONG})
    operands = tuple(Reg(name, "b32") for name in "abc")
    made = [name and Instr(name, operands) for name in (one, other)]
    assert commute(*made) is may
