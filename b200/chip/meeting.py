"""Lanes of a warp that wait for each other at an instruction with `.sync`.

Lanes run as independent threads (PTX ISA 9.7.9.8, 9.7.13.2). The parts of a warp that come to such
an instruction leave their operands at a meeting. When the last of the named lanes that have not
exited is there, the instruction is executed once for all of them, and each part goes on with the
results from where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b200.errors import Fault
from b200.program.analysis import reachable
from b200.program.meeting import Arguments, MeetingPlace, may_poll
from b200.registry import Run, Waitable, lanes_text

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment, WarpState
    from b200.chip.machine import Machine


class Meeting(Waitable):
    """Parts of a warp at one instruction, or at instructions that join each other.

    key: the membermask. members: the lanes that are to come. parts: (fragment, lanes, operands).
    arrived: their lanes. let_go: lanes that stood where a branch ends, and went on because others
    wait for them here.
    """

    __slots__ = ("state", "place", "key", "members", "parts", "arrived", "let_go", "done", "result")

    def __init__(self, state: WarpState, place: MeetingPlace, members: int):
        super().__init__()
        self.state, self.place = state, place
        self.key = self.members = members
        self.parts: list[tuple[Fragment, int, Arguments]] = []
        self.arrived = self.let_go = 0
        self.done = False
        self.result: Any = None

    def come(self, warp: Fragment, mask: int, args: Arguments) -> None:
        self.parts.append((warp, mask, args))
        self.arrived |= mask
        self.members |= mask

    @property
    def missing(self) -> int:
        """Lanes that are to come and have not exited."""
        return self.members & self.state.live & ~self.arrived

    def carry_out(self, warp: Fragment, run: Run) -> Any:
        """Execute the instruction for all lanes that have come. May raise Blocked, and is called
        again then.
        """
        args = self.place.joined([(mask, args) for _, mask, args in self.parts])
        mine, warp.mask = warp.mask, self.arrived
        warp.time = max(part.time for part, _, _ in self.parts)
        try:
            self.result = run(warp, self.arrived, *args)
        finally:
            warp.mask = mine
        self.done = True
        self._say_who_never_came(warp)
        self.touch()
        self.notify()
        return self.result

    def _say_who_never_came(self, warp: Fragment) -> None:
        gone = self.let_go & ~self.arrived & self.members
        if gone:
            warp.machine.undefined(
                f"membermask {self.members:#010x} names lanes {gone:#010x}, which have left the"
                " branch that leads here, or passed by, and do not come before they exit",
                "a membermask of the lanes that execute it (__activemask is not it: a ballot in"
                " front of the branch)",
                self.place.ins,
            )

    def describe(self) -> str:
        return f"lanes {self.missing:#010x} of its own warp, which have not come to it"


# --- when no warp can run -------------------------------------------------------------------------


def _warps(machine: Machine) -> list[WarpState]:
    return [state for state in machine.warps() if state.live]


def let_others_go(machine: Machine) -> bool:
    """Lanes go on from where they were to meet others, if lanes of their warp wait for them: at an
    instruction with `.sync`, or in a loop that reads memory which they may write. False if there
    are none.
    """
    found = 0
    for warp in _warps(machine):
        wanted = 0
        for meeting in warp.meetings.values():
            wanted |= meeting.missing if meeting.place.masked else 0
        for fragment in list(warp.fragments):
            polls = fragment.waits_for is None and machine.spinning.stands(fragment)
            polls = polls and warp not in machine.limits.over  # else it waits for an mbarrier
            found |= fragment.let_go(_writers(fragment) if polls else wanted)
    return bool(found)


def _writers(warp: Fragment) -> int:
    """Lanes that stand where they are to meet a fragment that polls, and may write memory from
    there on.
    """
    found, blocks = 0, warp.machine.code.structure
    for join in warp.joins():
        if not may_poll(blocks, reachable(blocks, join.at) - reachable(blocks, join.pc)):
            continue  # it reads no memory: the code behind is for all lanes at once (places)
        ops = (op for b in reachable(blocks, join.pc) for op in blocks[b].ops)
        if any(op.ins.mods[0] in ("st", "atom", "red") for op in ops):
            found |= join.arrived
    return found


def never_complete(machine: Machine) -> tuple[Fragment, Fault] | None:
    """An instruction that waits for lanes of its own warp which wait at others, and why it is a
    fault; None if there is none.
    """
    for warp in _warps(machine):
        for meeting in warp.meetings.values():
            others = [f for f in warp.fragments if f.mask & meeting.missing]
            if not others or any(not isinstance(f.waits_for, Meeting) for f in others):
                continue
            places = ", ".join(
                f"{lanes_text(f.mask & meeting.missing)} wait at {_where(f)}" for f in others
            )
            what = f"membermask {meeting.members:#010x}" if meeting.place.masked else "it"
            fragment = meeting.parts[0][0]
            return fragment, Fault(
                f"{what} names lanes {meeting.missing:#010x}, which have diverged and do not come: "
                f"{places}; here are {meeting.arrived:#010x}"
            )
    return None


def _where(warp: Fragment) -> str:
    meeting = warp.waits_for
    assert isinstance(meeting, Meeting)
    ins = meeting.place.ins
    return f"{ins.loc} ({ins.opcode})" if ins.loc else ins.text
