"""Where the checker takes more for ordered than PTX promises, on purpose.

Each choice is a change of a program: to the program that the checker takes it for. A race that is
not named is a choice's if the changed program has none. The reasons are in
docs/reference/memory-order.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.litmus.axioms import Model
from tests.litmus.program import Op, Program, Thread

Change = Callable[[Program, Thread, int], Op]  # of a thread's operation by its index


def volatile_in_a_cta(program: Program, thread: Thread, i: int) -> Op:
    """In shared memory a volatile access is a release or an acquire for warps of its CTA."""
    op = thread.ops[i]
    if op.order != "volatile" or program.space != "shared":
        return op
    users = {t.cta for t in program.threads for other in t.ops if _touches(other, op.at)}
    if users != {thread.cta}:
        return op
    return replace(op, order="release" if op.kind == "W" else "acquire")


def _touches(op: Op, at: int) -> bool:
    return op.kind in "WRPUA" and op.at == at


def wait_of_the_cta(program: Program, thread: Thread, i: int) -> Op:
    """A wait of an mbarrier without a scope, which PTX takes for .cta, acquires from the cluster; a
    relaxed one, too, with the fence behind it.
    """
    op = thread.ops[i]
    return replace(op, scope="cluster") if op.kind == "MW" else op


def arrival_behind_a_fence(program: Program, thread: Thread, i: int) -> Op:
    """An arrival of .cta scope behind a fence reaches as far as the fence."""
    op = thread.ops[i]
    fences = [f for f in thread.ops[:i] if f.kind == "F" and f.scope != "cta"]
    return replace(op, scope="cluster") if op.kind == "MA" and fences else op


def fence_behind_a_relaxed_wait(program: Program, thread: Thread, i: int) -> Op:
    """A fence of .cta scope behind a relaxed wait of an mbarrier acquires from the cluster."""
    op = thread.ops[i]
    waits = any(w.kind == "MW" and w.order == "relaxed" for w in thread.ops[:i])
    return replace(op, scope="cluster") if op.kind == "F" and op.scope == "cta" and waits else op


def fence_of_another_thread(program: Program, thread: Thread, i: int) -> Op:
    """A fence in front of a barrier counts for the relaxed writes of threads behind it; one behind
    it, for what they have read in front of it.
    """
    op = thread.ops[i]
    if op.order not in ("relaxed", "volatile") or op.kind not in "WUP":
        return op
    for other in program.threads:
        if other is thread or other.cta != thread.cta:
            continue
        for j, fence in enumerate(other.ops):
            if fence.kind != "F":
                continue
            if op.kind != "P" and _meet(other.ops[j:], thread.ops[:i]):
                return replace(op, order="release", scope=_both(op, fence))
            if op.kind == "P" and _meet(thread.ops[i:], other.ops[:j]):
                return replace(op, order="acquire", scope=_both(op, fence))
    return op


def _meet(behind: tuple[Op, ...], before: tuple[Op, ...]) -> bool:
    """Whether operations behind something in one thread arrive at a barrier for which operations
    before something in another thread wait.
    """
    waits = {op.at for op in before if op.kind == "B"}
    return any(op.kind in ("B", "BA") and op.at in waits for op in behind)


def _both(op: Op, fence: Op) -> str:
    scopes = ("cta", "cluster", "gpu", "sys")
    return min(op.scope, fence.scope, key=scopes.index)


CHOICES: dict[str, Change] = {
    "volatile within a CTA": volatile_in_a_cta,
    "the scope of try_wait": wait_of_the_cta,
    "a .cta arrival behind a wider fence": arrival_behind_a_fence,
    "a .cta fence behind a relaxed wait": fence_behind_a_relaxed_wait,
    "a fence of another thread": fence_of_another_thread,
}


def changed(program: Program, *changes: Change) -> Program:
    for change in changes:
        threads = (
            replace(t, ops=tuple(change(program, t, i) for i in range(len(t.ops))))
            for t in program.threads
        )
        program = replace(program, threads=tuple(threads))
    return program


def choice_of(program: Program) -> str | None:
    """The choice that explains why nothing is said of a racy program, "several", or None."""
    for name, change in CHOICES.items():
        if not Model(changed(program, change)).races()[0]:
            return name
    return "several" if not Model(changed(program, *CHOICES.values())).races()[0] else None
