"""Litmus programs as PTX, and what the checker says of them in several orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

import b200
from b200.chip.gpu import Gpu
from tests.litmus.program import WEAK, Op, Program, Thread

ORDERS = (None, "early", "late", "random:1", "random:2", "random:3")
APART, SHARED_APART, BARRIERS, MAILBOX = 128, 64, 512, 768  # bytes
ALL = 0xFFFFFFFF
HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 g, .param .u64 out) {
.reg .pred %p<9>, %me; .reg .b32 %r<60>; .reg .b64 %d<20>; .shared .align 128 .b8 sm[1024];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; ld.param.u64 %d0, [g]; ld.param.u64 %d1, [out];
and.b32 %r3, %r1, 31; shr.u32 %r4, %r1, 5; mad.lo.u32 %r4, %r2, 64, %r4; mov.u32 %r5, sm;
"""


class Writer:
    """Writes one program. Whole warps execute each operation, predicated on the lanes it is of."""

    def __init__(self, program: Program):
        self.program, self.lines = program, 1
        self.text: list[str] = []
        self.labels = self.slots = 0
        self.shared = program.space == "shared"
        self.meets = bool(program.numbers("CA", "CW"))

    def __call__(self, line: str) -> None:
        self.lines += 1
        self.text.append(f".loc 1 {self.lines} 0\n{line}")

    def write(self) -> str:
        program = self.program
        apart = program.cluster > 1
        if apart:
            self("mapa.shared::cluster.u32 %r5, %r5, 0;")
        self._start()
        warps = dict.fromkeys((t.cta, t.warp) for t in program.threads)
        for number, (cta, warp) in enumerate(warps):
            self(f"setp.eq.u32 %p1, %r4, {64 * cta + warp}; @%p1 bra W{number};")
        if self.meets:
            self("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")
        self("bra END;")
        for number, place in enumerate(warps):
            self(f"W{number}: mov.u32 %r6, 0;")
            for step in self._steps(place):
                self._step(step)
            self("bra END;")
        self("END: mov.u32 %r6, 0;")
        if apart:
            self("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")
        return HEAD + "\n".join(self.text) + '\nret;\n}\n.file 1 "litmus.ptx"\n'

    def _start(self):
        """Locations in shared memory and mbarriers of CTA 0, before anybody uses them."""
        program = self.program
        mbarriers = program.numbers("MA", "MW")
        if not self.shared and not mbarriers:
            return
        self("setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;")
        if self.shared:
            for at in program.numbers("W", "R", "P", "U", "A"):
                self(f"st.shared.u32 [sm+{SHARED_APART * at}], 0;")
        for at in mbarriers:
            count = program.arrivals(at)
            self(f"mbarrier.init.shared::cta.b64 [sm+{BARRIERS + 16 * at}], {count};")
        self("fence.mbarrier_init.release.cluster;")
        self("READY: mov.u32 %r6, 0;")
        if program.cluster > 1:
            self("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")
        else:
            self("bar.sync 0;")

    def _steps(self, place: tuple[int, int]) -> Iterator[Sequence[tuple[Thread, Op]]]:
        """What a warp executes, an instruction each: the lanes' operations."""
        threads = [t for t in self.program.threads if (t.cta, t.warp) == place]
        if self.program.converged:
            by_lane = {t.lane: t for t in threads}
            for step in self.program.converged:
                yield [(by_lane[lane], op) for lane, op in step]
            return
        (thread,) = threads
        for op in thread.ops:
            yield [(thread, op)]

    def _step(self, step: Sequence[tuple[Thread, Op]]):
        thread, op = step[0]
        if op.kind in SYNCHRONISE:
            self(SYNCHRONISE[op.kind](self.program, op))
            return
        mask = sum(1 << thread.lane for thread, _ in step)
        self(f"shr.u32 %r7, {mask}, %r3; and.b32 %r7, %r7, 1; setp.ne.u32 %me, %r7, 0;")
        if op.kind == "F":
            self(f"@%me fence.{op.order}.{op.scope};")
        elif op.kind == "FP":
            self("@%me fence.proxy.async;")
        elif op.kind in ("MA", "MW"):
            self._mbarrier(thread, op)
        else:
            self._access(step, mask)

    def _mbarrier(self, thread: Thread, op: Op):
        place = f"[%r5+{BARRIERS + 16 * op.at}]"
        space = "cta" if thread.cta == 0 else "cluster"
        if op.kind == "MA":
            self(f"@%me mbarrier.arrive.{op.order}.{op.scope}.shared::{space}.b64 _, {place};")
            return
        again = self._label()
        how = f"mbarrier.try_wait.parity.{op.order}.{op.scope}.shared::cta.b64"
        self(f"{again}: {how} %p3, {place}, 0; @!%p3 bra {again};")

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def _access(self, step: Sequence[tuple[Thread, Op]], mask: int):
        thread, op = step[0]
        apart = SHARED_APART if self.shared else APART
        self(f"mov.u32 %r8, {apart * op.at};")
        for other, its in step[1:]:
            if its.at != op.at:
                self(f"setp.eq.u32 %p4, %r3, {other.lane}; @%p4 mov.u32 %r8, {apart * its.at};")
        if self.shared:
            self("add.u32 %r9, %r5, %r8;")
            place = "[%r9]"
            space = "shared::cta" if thread.cta == 0 else "shared::cluster"
        else:
            self("cvt.u64.u32 %d3, %r8; add.u64 %d2, %d0, %d3;")
            place, space = "[%d2]", "global"
        how = op.order if op.order in (WEAK, "volatile") else f"{op.order}.{op.scope}"
        if op.kind == "W":
            self(f"mov.u32 %r20, {op.value};")
            for other, its in step[1:]:
                if its.value != op.value:
                    self(f"setp.eq.u32 %p4, %r3, {other.lane}; @%p4 mov.u32 %r20, {its.value};")
            self(f"@%me st.{how}.{space}.u32 {place}, %r20;")
        elif op.kind == "U":
            self(f"@%me atom.{how}.{space}.add.u32 %r21, {place}, 1;")
        elif op.kind == "R":
            self(f"@%me ld.{how}.{space}.u32 %r21, {place};")
            self.slots += 1
            self(f"mad.lo.u32 %r22, %r3, 4, {128 * self.slots}; cvt.u64.u32 %d4, %r22;")
            self("add.u64 %d4, %d4, %d1;")
            self("@%me st.global.u32 [%d4], %r21;")
        elif op.kind == "P":
            again = self._label()
            self(f"mov.u32 %r21, {op.value};")
            self(f"{again}: @%me ld.{how}.{space}.u32 %r21, {place};")
            self(f"setp.ne.u32 %p2, %r21, {op.value}; vote.sync.any.pred %p3, %p2, {ALL};")
            self(f"@%p3 bra {again};")
        else:
            self._copy()

    def _copy(self):
        """A bulk copy of a location in global memory to the thread's own shared memory."""
        again = self._label()
        self(f"mov.u32 %r10, sm; add.u32 %r10, %r10, {MAILBOX};")
        self("@%me mbarrier.init.shared::cta.b64 [%r10+16], 1;")
        self("@%me fence.mbarrier_init.release.cluster;")
        self("@%me mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10+16], 16;")
        self(
            "@%me cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d2],"
            " 16, [%r10+16];"
        )
        self("bar.warp.sync -1;")
        self(
            f"{again}: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+16], 0;"
            f" @!%p3 bra {again};"
        )


def _barrier(program: Program, op: Op) -> str:
    threads = [
        t for t in program.threads if any(o.kind in ("B", "BA") and o.at == op.at for o in t.ops)
    ]
    warps = len({(t.cta, t.warp) for t in threads})
    return f"bar.{'sync' if op.kind == 'B' else 'arrive'} {op.at + 1}, {32 * warps};"


SYNCHRONISE = {
    "B": _barrier,
    "BA": _barrier,
    "CA": lambda program, op: f"barrier.cluster.arrive.{op.order};",
    "CW": lambda program, op: "barrier.cluster.wait.acquire;",
    "S": lambda program, op: "bar.warp.sync -1;",
    "V": lambda program, op: "shfl.sync.idx.b32 %r30, %r3, 0, 31, -1;",
}


def said(program: Program, orders: Sequence[str | None] = ORDERS) -> list[str]:
    """What the checker says in each order: "error", "portability", "" or "hangs"."""
    text = Writer(program).write()
    threads = 32 * (1 + max(1, *(t.warp for t in program.threads)))
    found = []
    for order in orders:
        gpu = Gpu()
        gpu.machine = b200.machine(gpu.memory, check=True, schedule=order)
        data = [torch.zeros(n, dtype=torch.int32) for n in (512, 2048)]
        shape = (program.ctas, 1, 1), (threads, 1, 1), (program.cluster, 1, 1)
        hangs = False
        try:
            findings = gpu.launch(text, None, *shape, args=data).findings or []
        except b200.EmulatorError as error:
            if error.kind != "deadlock":
                raise
            findings, hangs = error.findings, True
        kinds = {finding.severity for finding in findings}
        grave = next((kind for kind in ("error", "portability") if kind in kinds), "")
        found.append(grave or ("hangs" if hangs else ""))
    return found


def worst(answers: Sequence[str]) -> str:
    """The gravest answer: "error", "portability", "hangs" or "" for nothing."""
    return next((kind for kind in ("error", "portability", "hangs") if kind in answers), "")
