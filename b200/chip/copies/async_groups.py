"""Groups of asynchronous copies of a thread: commit_group and wait_group (PTX ISA 9.7.9.25.3).

Each thread has two sequences of groups: "bulk" (cp.async.bulk with .bulk_group) and "cp.async". A
copy that is complete when `Machine.issue` returns is not recorded at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from b200.chip.operations import Action, Operation
from b200.program.module import Instr
from b200.registry import Blocked, Waitable, active

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


class Copy(Waitable):
    """An asynchronous copy under way; `then` is called when it is done."""

    __slots__ = ("ins", "done", "then")

    def __init__(self, ins: Instr):
        super().__init__()
        self.ins, self.done = ins, False
        self.then: list[Callable[[], None]] = []

    def finish(self) -> None:
        self.done = True
        for action in self.then:
            action()
        self.notify()

    def describe(self) -> str:
        where = f" at {self.ins.loc}" if self.ins.loc else ""
        return f"the completion of {self.ins.opcode}{where}"


class Groups:
    """The copies of a thread that may be under way: those not committed, and groups in order."""

    __slots__ = ("open", "groups")

    def __init__(self):
        self.open: list[Copy] = []
        self.groups: deque[list[Copy]] = deque()

    def commit(self) -> None:
        self.groups.append([c for c in self.open if not c.done])
        self.open = []
        while self.groups and all(c.done for c in self.groups[0]):
            self.groups.popleft()

    def pending(self, but_last: int) -> Copy | None:
        """A copy that is under way in a group older than the `but_last` most recent groups; None if
        there is none.
        """
        older = list(self.groups)[: max(0, len(self.groups) - but_last)]
        return next((copy for group in older for copy in group if not copy.done), None)

    def under_way(self) -> list[Copy]:
        return [c for group in (*self.groups, self.open) for c in group if not c.done]


def groups_of(warp: Fragment, kind: str, lane: int) -> Groups | None:
    """The thread's groups of a kind, None if none of its copies was ever left under way."""
    return warp.cta.async_groups.get((kind, warp.index, lane))


def issue_in_group(
    warp: Fragment, kind: str, mask: int, ins: Instr, operation: Operation, move: Action
) -> None:
    """Issue `move` as a copy of the open group of each thread in `mask`."""
    copy = Copy(ins)

    def apply() -> None:
        move()
        copy.finish()

    warp.machine.issue(operation, warp, apply)
    if not copy.done:
        for lane in active(mask):
            of_thread = warp.cta.async_groups.setdefault((kind, warp.index, lane), Groups())
            of_thread.open.append(copy)


def _of_threads(warp: Fragment, kind: str, mask: int) -> Iterator[Groups]:
    for lane in active(mask) if warp.cta.async_groups else ():
        if (groups := groups_of(warp, kind, lane)) is not None:
            yield groups


def commit(warp: Fragment, kind: str, mask: int) -> None:
    """commit_group of the threads in `mask`."""
    for groups in _of_threads(warp, kind, mask):
        groups.commit()


def wait(warp: Fragment, kind: str, mask: int, but_last: int) -> None:
    """wait_group: Blocked while a group before the `but_last` most recent ones is under way."""
    for groups in _of_threads(warp, kind, mask):
        if (copy := groups.pending(but_last)) is not None:
            raise Blocked(copy)
