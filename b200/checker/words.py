"""How findings name things: lines, warps by their role, barriers, and the step that is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from b200.checker.accesses import Record, issued_before, known
from b200.checker.agent import Agent
from b200.checker.vector_clocks import HB
from b200.chip.describe import call, called_from, mnemonic
from b200.chip.state import CTA
from b200.program.module import Instr

ROLES = ("load", "MMA", "store", "epilogue")  # what a warp is called, the first that fits
LOADS = ("tma", "bulk", "bulk_reduce", "cp.async")
CORE = ("mma", "cp", "shift")


def line(ins: Instr | None) -> str:
    """file:line of an instruction."""
    if ins is None or ins.loc is None:
        return "(no line information)"
    return str(ins.loc)


def calls(*instructions: Any) -> list[str]:
    """For each instruction that is inside a helper function, a line that says who called it."""
    found = dict.fromkeys(
        f"{line(ins)} is {called}"
        for ins in instructions
        if isinstance(ins, Instr) and (called := called_from(ins))
    )
    return list(found)


def name(agent: Agent) -> str:
    """A warp's name in a finding: its role, number and CTA."""
    role = next((f"{r} warp" for r in ROLES if r in agent.roles), "warp")
    rank = f", rank {agent.cta.rank} of its cluster" if len(agent.cta.cluster.ctas) > 1 else ""
    return f"{role} {agent.index} of CTA {agent.cta.index}{rank}"


def act(record: Record) -> str:
    """An access in words: line, instruction, what it does, with which operands, by which warp."""
    what = f"{line(record.ins)}: {mnemonic(record.ins)} {record.text}{operands(record)}"
    return f"{what}, by {name(record.agent)}"


def conflict(new: Record, old: Record, where: str) -> tuple[str, str, str]:
    """The lines of a report that name two accesses, and the place that both have."""
    return f"this access: {act(new)}", f"conflicts with: {act(old)}", f"in {where}"


def operands(record: Record) -> str:
    """The tensors that an MMA's operands come from: " (A: weights, B: tokens)", " (of sfa)"."""
    records = record.agent.state.records if record.parts else []
    found = [
        f"{operand or 'of'}{':' if operand else ''} {records[number].source}"
        for operand, number in record.parts
        if 0 < number < len(records) and records[number].source
    ]
    return f" ({', '.join(found)})" if found else ""


def place(cta: CTA, low: int, high: int, unit: int) -> str:
    """The text that names a range of cells of a CTA's shared memory. unit: bytes of a cell."""
    return f"shared memory [{low * unit:#x}, {(high + 1) * unit:#x}) of CTA {cta.index}"


def thing(record: Record) -> str:
    """An operation in words, as the subject of a sentence."""
    return {
        "tma": "the TMA load",
        "bulk": "the bulk copy",
        "bulk_reduce": "the bulk reduction",
        "cp.async": "the cp.async",
        "mma": "tcgen05.mma",
        "cp": "tcgen05.cp",
        "tma_store": "the TMA store",
        "bulk_store": "the bulk store",
        "st.async": "the st.async",
        "red.async": "the red.async",
        "load": "tcgen05.ld",
        "store": "tcgen05.st",
    }.get(record.kind, mnemonic(record.ins) if record.ins is not None else "an access")


def wait_for_landing(agent: Agent, old: Record) -> str:
    """Why a warp does not know that a copy has landed."""
    barrier = old.barrier
    if barrier is None:
        return f"missing: a wait for {thing(old)} by {name(agent)}"
    if (short := barrier.signalled - barrier.announced) > 0:
        return (
            f"missing: {short} bytes in expect_tx: so far {barrier.announced} bytes were announced "
            f"on the {barrier.name()}, and copies of {barrier.signalled} bytes issued; its phases "
            "end before all bytes are there"
        )
    where = f"{barrier.name()}, phase {old.step - 1 if old.step < 1 << 30 else barrier.phases}"
    last = agent.waits.get(barrier)
    if barrier in agent.looked:
        _, ins, failed = agent.looked[barrier]
        why = "failed and was not repeated" if failed else "has an answer that nothing depends on"
        return (
            f"missing: a loop around the {mnemonic(ins)} of {name(agent)} at {call(ins)}, which "
            f"{why}: it looks at the {where}, which the copy completes (a loop that ends after "
            "some tries is no wait)"
        )
    if last is None:
        return f"missing: {name(agent)} never waited on the {where}, which the copy completes"
    parity, phases, ins = last
    return (
        f"missing: a wait of {name(agent)} for the {where}, which the copy completes; its latest "
        f"wait there, for parity {parity} at {line(ins)}, was satisfied by phase "
        f"{phases - 1 if phases else 'before the first'}: the wait is a phase off, or stands after "
        "the access"
    )


def wait_for_core(agent: Agent, old: Record) -> str:
    """Why a warp does not know that a tensor-core operation has finished."""
    if old.agent is agent or issued_before(agent, old):
        return (
            f"missing: tcgen05.commit after {thing(old)} and a wait for its mbarrier by "
            f"{name(agent)}"
        )
    return (
        f"missing: {name(agent)} has not waited for the mbarrier that a tcgen05.commit after "
        f"{thing(old)} (by {name(old.agent)}) arrives on"
    )


def wait_for_store(agent: Agent, old: Record) -> str:
    """Why a warp does not know that a bulk copy has read its source."""
    if old.agent is not agent and known(old.agent, old):
        return (
            f"missing: a barrier between cp.async.bulk.wait_group.read, where {name(old.agent)} "
            f"has waited for the copy, and {name(agent)}"
        )
    if old.agent is agent or issued_before(agent, old):
        return "missing: " + (
            too_many_left(old, "cp.async.bulk.wait_group.read")
            or "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read by the warp that "
            "issued the copy"
        )
    wait = too_many_left(old, "cp.async.bulk.wait_group.read", agent)
    return (
        f"missing: {wait or 'cp.async.bulk.wait_group.read'} by {name(old.agent)}, then a barrier "
        f"between it and {name(agent)}"
    )


def too_many_left(old: Record, wait: str, agent: Agent | None = None) -> str:
    """The change that a too large N of wait_group needs, in words: the largest N that still waits
    for the copy, in place of the N of the wait_group that was to. "" if no wait_group came after
    the copy, or if its N is not too large. agent: None, or the warp that goes on too early: what it
    knows of the copy's warp tells which wait_group was the last one before the signal to it.
    """
    streams = old.agent.streams.values()
    copies = next((stream for stream in streams if stream.component == old.component), None)
    if copies is None or not copies.waits or (group := copies.group(old.step)) is None:
        return ""
    known_of = copies.waits
    if agent is not None and agent is not old.agent:
        seen = [w for w in known_of if agent.knows(HB, old.agent.component, w[3])]
        known_of = [w for w in seen if w[1] > group] or known_of
    n, committed, ins, _ = known_of[-1]
    most = committed - 1 - group
    if most < 0 or n <= most:
        return ""
    return f"{wait} {most} in place of {n} at {call(ins)}, which leaves the copy under way"


class OfAgent(Protocol):
    """Something that a warp has done."""

    @property
    def agent(self) -> Agent: ...


def barrier_between(agent: Agent, old: OfAgent) -> str:
    """The line that asks for a barrier between two warps."""
    return (
        f"missing: a barrier ({barriers_for(agent, old.agent)}) between {name(old.agent)} and "
        f"{name(agent)}"
    )


def barriers_for(agent: Agent, other: Agent) -> str:
    """The barriers that can order two warps, in words; mbarriers only where the program has any."""
    mbarrier = ", or mbarrier arrive and wait" if agent.state.barriers else ""
    if agent.cta is not other.cta:
        return f"barrier.cluster.arrive and wait{mbarrier}"
    return f"bar.sync{mbarrier}" if mbarrier else "__syncthreads(): bar.sync"


def latest_wait(agent: Agent) -> str:
    """The latest wait of a warp, which may have waited for the wrong thing: text that begins with
    "; its latest wait"; "" if the warp has not waited.
    """
    if not agent.waits:
        return ""
    barrier, (parity, phases, ins) = next(reversed(agent.waits.items()))
    passed = "" if phases else ", passed before any phase was over"
    return f"; its latest wait, at {line(ins)} for parity {parity} of {barrier.name()}{passed}"


def missing_wait(new: Record, old: Record) -> str:
    """The wait that would have kept `old` from reading before `new` writes, in words."""
    agent, barrier = old.agent, new.barrier
    if new.kind not in (*LOADS, *CORE, "st.async", "red.async"):
        return barrier_between(agent, new)
    by = f"that {thing(new)} completes" if new.kind in LOADS else f"that signals {thing(new)}"
    if barrier is None:
        return f"missing: a wait of {name(agent)} for the mbarrier {by}"
    last = agent.waits.get(barrier)
    if last is None:
        return (
            f"missing: {name(agent)} never waited on the {barrier.name()}, phase "
            f"{barrier.phases}, {by}"
        )
    parity, phases, ins = last
    return (
        f"missing: a wait of {name(agent)} for phase {barrier.phases} of the {barrier.name()}, "
        f"{by}; its wait there, "
        f"for parity {parity} at {line(ins)}, passed at once: it is a phase off"
    )


def missing_step(agent: Agent, old: Record) -> str:
    """The step that would have ordered `old` before what `agent` does now, in words."""
    if old.kind in CORE:
        return wait_for_core(agent, old)
    if old.barrier is not None:
        return wait_for_landing(agent, old)
    if old.kind in ("tma_store", "bulk_store"):
        return wait_for_store(agent, old)
    if old.kind == "cp.async":
        wait = too_many_left(old, "cp.async.wait_group", agent)
        return f"missing: {wait or 'cp.async.wait_group, then a barrier'}"
    if old.kind == "load" and issued_before(agent, old):
        return f"missing: tcgen05.wait::ld by {name(old.agent)} before it signals"
    if old.kind == "store" and issued_before(agent, old):
        return f"missing: tcgen05.wait::st by {name(old.agent)} before it signals"
    return barrier_between(agent, old)


def stage_is_free(new: Record, old: Record) -> Callable[[], str]:
    """Returns a function that words what is missing where a load overwrites a stage that is still
    loaded or read: a wait for the mbarrier on which the readers of the stage arrive. Call it at the
    end of the run, which has then shown who arrives.
    """
    agent, waited, otherwise = new.agent, dict(new.agent.waits), missing_step(new.agent, old)

    def told() -> str:
        barriers = agent.state.barriers.values()
        for barrier in barriers:
            answer = barrier.answers.get(new.barrier) or barrier.answers.get(old.barrier)
            if answer is None or barrier in (new.barrier, old.barrier):
                continue
            how = f"{name(agent)} has never waited there"
            if barrier in waited:
                parity, phases, ins = waited[barrier]
                if phases:
                    return otherwise
                how = f"its wait there, for parity {parity} at {call(ins)}, passed at once: "
                how += "it is a phase off"
            reader, ins = answer
            return (
                f"missing: a wait of {name(agent)} until the stage is free: for the "
                f"{barrier.name()}, on which {name(reader)} arrives at {line(ins)} when it has "
                f"read it; {how}"
            )
        if old.kind not in LOADS:
            return otherwise
        idle = [b for b in barriers if b.object.cta is agent.cta and b.idle]
        perhaps = f"; nobody uses the {', the '.join(b.name() for b in idle[:3])}" if idle else ""
        for barrier, (parity, phases, ins) in reversed(waited.items()):
            if not phases and barrier not in (new.barrier, old.barrier):
                perhaps = (
                    f"; its wait for parity {parity} of the {barrier.name()}, at {call(ins)}, "
                    "passed before any phase was over: it is a phase off, or of another stage"
                )
                break
        return (
            f"missing: a wait of {name(agent)} until the stage is free, for an mbarrier that its "
            f"readers arrive on when they have read it{perhaps}"
        )

    return told


def first_cause(new: Record | None, old: Record | None) -> str:
    """The mistake of a warp that caused a conflict, in front of the conflict's text; or ""."""
    records = [record for record in (new, old) if record is not None]
    about = {record.barrier for record in records if record.barrier is not None}
    for agent in dict.fromkeys(record.agent for record in records):
        looked = agent.looked if agent is records[0].agent else {}  # others may still be waiting
        for barrier, (parity, ins, failed) in looked.items():
            if barrier in about or not barrier.signalled and agent.waits.get(barrier) is None:
                how, verb = ("though", "has failed") if failed else ("whatever", "finds")
                return (
                    f"{name(agent)} goes on {how} its {mnemonic(ins)} at {call(ins)}, for parity "
                    f"{parity} of the {barrier.name()}, {verb}: "
                )
        if agent.again is not None:
            barrier, parity, ins, _ = agent.again
            if barrier in about or barrier is next(reversed(agent.waits), None):
                return (
                    f"{name(agent)} has waited twice in a row for parity {parity} of the "
                    f"{barrier.name()}, at {call(ins)}: "
                )
    return ""


def shared_race(new: Record, old: Record, how: str, order: str) -> str:
    """The sentence of a race in shared memory. how: "read": `new` reads what `old` writes; "write":
    `new` writes what `old` reads; "overwrite": `new` writes what `old` writes. order: the order
    that there is between the two, in words.
    """
    if how == "read":
        if old.barrier is not None:
            return f"{thing(new)} reads shared memory before {thing(old)} into it has landed"
        if old.agent is new.agent:
            return f"{thing(new)} reads shared memory before {thing(old)} has written it"
        return f"{thing(new)} reads shared memory that {thing(old)} of another warp writes, {order}"
    if old.empty:
        return (
            f"{thing(old)} reads shared memory before {thing(new)} writes it, "
            "with nothing to make it wait"
        )
    if old.kind in CORE:
        return (
            f"{thing(new)} overwrites shared memory before the {thing(old)} "
            "that reads it has committed"
        )
    if old.kind in ("tma_store", "bulk_store"):
        return f"{thing(new)} overwrites shared memory before {thing(old)} has read it"
    if how == "overwrite" and old.barrier is not None:
        return f"{thing(new)} writes shared memory while {thing(old)} into it is under way"
    verb = "reads" if how == "write" else "writes"
    who = "the same warp" if old.agent is new.agent else "another warp"
    return f"{thing(new)} writes shared memory that {thing(old)} of {who} {verb}, {order}"
