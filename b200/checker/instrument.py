"""Wraps the observer around run functions: `wrap(ins, run)` returns a function of the same form.

The translator's checked writer puts these functions in place of the plain ones. A launch without
the checker never executes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from b200.checker import generic, tensor_accesses, tensormap_accesses
from b200.checker import synchronisation as sync
from b200.checker.generic import UNSEEN
from b200.checker.overflows import watched
from b200.checker.registers import first_reads
from b200.checker.steps import every_operand, look_of, plain
from b200.checker.vector_clocks import Agent
from b200.checker.without_rule import without_rule
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import Run


class CheckedWriter(Writer):
    """Translates a kernel with the observer around every instruction that has state."""

    def write(self) -> None:
        self.first_reads = first_reads(self.out.structure)
        self.out.without_rule = without_rule(self.out.structure, [words for words, _ in WRAPPERS])
        super().write()

    def _stays(self, op) -> bool:
        return id(op.ins) in self.first_reads or super()._stays(op)

    def _kind(self, op):
        return None if id(op.ins) in self.first_reads else super()._kind(op)

    def _vector(self, group, args, mask):
        made = group[0].made
        if made.narrows is None:
            return super()._vector(group, args, mask)
        function = self._constant(watched([op.ins for op in group], made))
        return f"{function}(w, {mask}, {', '.join(a[0] for a in args)})"

    def _op(self, op):
        if (loads := self.first_reads.get(id(op.ins))) is not None:
            self._line(f"w.machine.observer.registers_read(w, {self._constant(loads)})", op.ins)
        if op.entry is not None and op.entry.style != "pure" and op.made is not None:
            op = replace(op, made=wrap(op.ins, op.made, op.entry.style))
        super()._op(op)


def wrap(ins: Instr, run, style: str) -> Run:
    """The run function of an instruction, observed. style: "lane" or "warp"."""
    for words, make in WRAPPERS:
        if ins.mods[: len(words)] == words:
            return _noted(ins, run, style) if make is None else _stepping(ins, run, make)
    return run


def _stepping(ins: Instr, run, make: Callable):
    """The wrapper's run function, with the instruction's step taken before it. A cluster that
    follows executes the plain run function instead (following.py).
    """
    observed = make(ins, run)
    look = look_of(make, ins)
    if look is None or observed is run:
        return observed

    def step(w, who, *args):
        trail = w.cta.cluster.trail
        if trail is not None:
            w.machine.observer.ins = ins
            if look is every_operand:
                trail.take(ins, w, who, tuple(map(plain, args)))
            else:
                trail.look(ins, w, who, look(w, who, args))
            if trail.follows:
                return run(w, who, *args)
        return observed(w, who, *args)

    return step


def can_be_followed(code: Translated) -> bool:
    """Whether the checker knows the steps of each instruction of a kernel (following.py)."""
    ops = (op.ins for block in code.structure for op in block.ops if op.entry is not None)
    return all(map(_has_steps, ops))


def _has_steps(ins: Instr) -> bool:
    if ins.mods[0] in ("call", "clusterlaunchcontrol"):
        return False  # what the device has printed, or cancelled, stays so
    for words, make in WRAPPERS:
        if ins.mods[: len(words)] == words:
            unseen = ins.mods[0] in ("ld", "ldu", "st") and ins.has(*UNSEEN)
            stepless = make is None or make is sync.meets
            return stepless or unseen or look_of(make, ins) is not None
    return True


def _noted(ins: Instr, run, style: str):
    """Observe an instruction that issues an asynchronous operation. `issue` sees what the operation
    does; here the observer is told which instruction issues it.
    """
    one = style == "lane"

    def observed(w, who, *args):
        observer = w.machine.observer
        observer.ins, observer.lane = ins, who if one else None
        return run(w, who, *args)

    return observed


# Leading words -> wrapper(ins, run); None: `_noted`.
WRAPPERS: tuple[tuple[tuple[str, ...], Callable | None], ...] = (
    (("mbarrier", "init"), sync.init),
    (("mbarrier", "inval"), sync.inval),
    (("mbarrier", "arrive"), sync.arrive),
    (("mbarrier", "arrive_drop"), sync.arrive),
    (("mbarrier", "expect_tx"), sync.arrive),
    (("mbarrier", "complete_tx"), sync.complete_tx),
    (("mbarrier", "try_wait"), sync.wait),
    (("mbarrier", "test_wait"), sync.wait),
    (("barrier", "cluster", "arrive"), sync.cluster_arrive),
    (("barrier", "cluster", "wait"), sync.cluster_wait),
    (("bar", "warp"), sync.warp_sync),
    (("bar",), sync.named),
    (("barrier",), sync.named),
    (("setmaxnreg",), sync.registers),
    (("fence", "proxy", "tensormap::generic"), tensormap_accesses.fence),
    (("fence",), sync.fence),
    (("membar",), sync.fence),
    (("griddepcontrol",), sync.grid_dependency),
    (("tcgen05", "fence::before_thread_sync"), sync.tensor_fence(Agent.fence_before)),
    (("tcgen05", "fence::after_thread_sync"), sync.tensor_fence(Agent.fence_after)),
    (("tcgen05", "wait::ld"), sync.stream_wait("tmem_load")),
    (("tcgen05", "wait::st"), sync.stream_wait("tmem_store")),
    (("cp", "async", "bulk", "commit_group"), sync.commit_group("bulk_read", "bulk_write")),
    (("cp", "async", "bulk", "wait_group"), sync.wait_group("bulk_read", "bulk_write")),
    (("cp", "async", "commit_group"), sync.commit_group("cp_async")),
    (("cp", "async", "wait_group"), sync.wait_group("cp_async")),
    (("cp", "async", "wait_all"), sync.wait_group("cp_async")),
    (("tcgen05", "alloc"), tensor_accesses.alloc),
    (("tcgen05", "dealloc"), tensor_accesses.dealloc),
    (("tcgen05", "ld"), tensor_accesses.tensor_access),
    (("tcgen05", "st"), tensor_accesses.tensor_access),
    (("tcgen05",), None),
    (("cp",), None),
    (("st", "async"), None),
    (("red", "async"), None),
    (("clusterlaunchcontrol", "query_cancel", "is_canceled"), sync.is_canceled),
    (("clusterlaunchcontrol",), None),
    (("tensormap", "cp_fenceproxy"), tensormap_accesses.copy),
    (("tensormap", "replace"), tensormap_accesses.replace),
    *(((word,), sync.meets) for word in ("elect", "match", "mma", "redux", "shfl", "vote")),
    (("ldmatrix",), generic.matrix_access),
    (("stmatrix",), generic.matrix_access),
    (("ld",), generic.access),
    (("ldu",), generic.access),
    (("st",), generic.access),
    (("atom",), generic.atomic),
    (("red",), generic.atomic),
)
