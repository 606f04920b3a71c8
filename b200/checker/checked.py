"""`Checker`, a watcher of a machine (chip/watcher.py): races and errors of protocol.

The checker sees every access, arrive, wait and exit, and changes no result. Generated code calls
the same run functions with an observer around them (instrument.py), and the machine tells of
asynchronous operations. The findings are in `launch.findings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from b200.checker import words
from b200.checker.abreast.follow import FollowAbreast, next_clusters
from b200.checker.finding import ERROR, LIMIT, NOTE, PORTABILITY, Finding
from b200.checker.following import Departed, Traces, Trail
from b200.checker.instrument import CheckedWriter, can_be_followed
from b200.checker.launches import ended, lifetime
from b200.checker.launches.dependent_launch import DependentLaunch, Footprint, InFlight
from b200.checker.launches.late_footprint import can_be_late, late_footprint
from b200.checker.launches.other_queues import Beside
from b200.checker.memory import unwritten
from b200.checker.memory.thread_order import can_be_judged
from b200.checker.observer import Observer
from b200.checker.products import nans
from b200.checker.tensor import partly_written
from b200.chip.describe import mnemonic
from b200.chip.fragment import Fragment, WarpState
from b200.chip.global_memory import Region
from b200.chip.launch import Arguments, Launch, Shape
from b200.chip.machine import Machine
from b200.chip.operations import Action, Operation
from b200.chip.overlap import lets_start
from b200.chip.state import Cluster
from b200.chip.sync.barrier_record import BarrierHistory, SlippedWait
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.watcher import Watcher
from b200.errors import EmulatorError
from b200.program.module import Instr
from b200.program.translate import translate
from b200.program.translated import Translated

KEPT = 4  # kernels whose clusters later launches may follow
SHOWN = 8  # findings quoted in the report of an error
UNKNOWN = "whether a result depends on {} was not looked at"
# Words of what PTX leaves undefined -> the chip or program that has shown what comes of it
WITNESSES = {
    "has an address for each lane": "NVIDIA ships mixed_input_fmha_prefill_d512",
    "a generic address where PTX takes a shared one": "ThunderKittens' kernels run so",
    "are not in membermask": "SHFL has no membermask where lanes have not diverged",
}
# Kind of a finding about what PTX leaves undefined, by whose bytes are read
KINDS = {
    "": "protocol",
    "shared": "uninitialised",
    "local": "uninitialised",
    "behind": "unwritten",
}
NAMES = {
    "shared": "shared memory that nobody has written",
    "tensor": "tensor memory that nobody has written",
    "freed": "tensor memory that is deallocated",
    "local": "local memory that nobody has written",
    "registers": "registers that nobody has written",
    "behind": "memory behind a tensor, or freed,",
}


class CheckedFragment(Fragment):
    """A fragment whose instructions are observed."""

    __slots__ = ("observer",)

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        super().__init__(machine, state, mask, pc)
        checker = machine.watcher(Checker)
        assert checker is not None
        self.observer = checker.observer


class Checker(Watcher):
    """The checker of a machine's launches.

    follow: whether clusters that do what others have done run unchecked (following.py).
    keep_stores: whether launch.stores says who stored what. beside: set by the host where there are
    several queues.
    """

    writer_type = CheckedWriter
    fragment_type = CheckedFragment
    observer: Observer  # of the present or latest launch

    def __init__(self, follow: bool = True):
        self.follow, self.keep_stores = follow, False
        # address of a tensormap in global memory -> its bytes when an operation used it last
        self.used_tensormaps: dict[int, bytes] = {}
        # Allocations that are known to be written (unwritten.py).
        self.whole: dict[int, Region] = {}
        # queue -> what may still run when a dependent launch starts there; set by the host: its own
        self.in_flight: dict[int, InFlight] = {}
        self.queue = 0
        self.beside: Beside | None = None
        # (kernel, grid, block, cluster, bytes of shared memory) -> what a later launch may follow
        self.traces: dict[tuple, Traces] = {}
        self.hits_before: list[int] = []  # when the latest cluster was admitted

    @property
    def repeatable(self) -> bool:
        return self.beside is None or not self.beside.earlier

    # --- a launch ---------------------------------------------------------------------------------
    def begins(self, code: Translated, arguments: Arguments) -> None:
        dependence = self._dependence(code, arguments)
        follow = self.follow and self.machine.order.plain and not self.keep_stores
        traces = None
        if follow and can_be_followed(code):
            kept = self.traces.pop(self._key(code, arguments, dependence), None)
            traces = kept or Traces(can_be_judged(code))
            if dependence is not None and not dependence.can_be_followed(traces.seen):
                traces = None
        self.machine.memory.heap.begins()
        self.observer = Observer(self, code, traces)
        self.observer.dependence = dependence
        if dependence is not None:
            dependence.observer = self.observer

    def over(self) -> None:
        dependence = self.observer.dependence
        self.in_flight.pop(self.queue, None)
        if dependence is not None and (after := dependence.after()).early:
            self.in_flight[self.queue] = after
        if self.beside is not None and dependence is not None:
            self.beside.footprint = dependence.kept

    def _footprint(self, code: Translated) -> Footprint | None:
        """Of a launch that has ended, for work of other queues; None where there is one queue."""
        dependence = self.observer.dependence
        if self.beside is None or dependence is not None:
            return None if dependence is None else dependence.kept
        rules, memory = self.observer.globals, self.machine.memory
        return late_footprint(code.kernel.name, rules, memory)

    def ends(self, launch: Launch, code: Translated, arguments: Arguments) -> None:
        observer, again = self.observer, (code, *arguments)
        if observer.unwritten.reads:
            observer.unwritten.tell(self._reached("", *again))
        if partly_written.suspicious(observer) and (reached := self._reached("tensor", *again)):
            partly_written.tell(observer, reached)
        if unwritten.registers_read_first(code):
            if reached := self._reached_or_unknown("registers", *again):
                unwritten.tell_of_registers(observer, code, reached)
        launch.footprint = self._footprint(code)
        ended.mutual_waits(observer, cooperative=arguments[0].workspace != 0)
        observer.finish()
        nans.look(observer, partial(self._again, *again))
        keeps = observer.keeps()
        self._judge_reads(*again)
        observer.findings.arrange()
        launch.findings = observer.findings
        launch.stores = observer.stores
        launch.incomplete = self._incomplete()
        if observer.following is not None:
            launch.followed = observer.following.followed
            if keeps:
                key = self._key(code, arguments, observer.dependence)
                self.traces[key] = observer.following.traces
                if len(self.traces) > KEPT:
                    del self.traces[next(iter(self.traces))]
        if observer.dependence is None:
            observer.forget()

    def _reached(self, where: str, code: Translated, *arguments: Any) -> str | None:
        """A result that depends on what nobody has written there (a key of NAMES; "": global
        memory), in words, "" if none does; None if that cannot be found out.
        """
        again = self._again(code, *arguments)
        if again is None:
            return None
        return self.observer.unwritten.reaches(partial(again, where=where), shared=bool(where))

    def _reached_or_unknown(self, where: str, *again: Any) -> str | None:
        """The same; and the launch is not judged whole if that cannot be found out."""
        reached = self._reached(where, *again)
        if reached is None:
            self.observer.not_judged.append(UNKNOWN.format(NAMES[where]))
        return reached

    def _judge_reads(self, *again: Any) -> None:
        """Judge reads of what has no value of the program's: shared and tensor memory that nobody
        has written, columns that are deallocated, bytes behind a tensor, values of lanes that have
        exited. A kernel may mask or drop what it reads there; if a result depends on it, the read
        is an error, else a note.
        """
        observer = self.observer
        findings, undecided = observer.findings, observer.undecided
        present = [undecided.get((f.kind, f.loc, f.other)) for f in findings]
        for where in dict.fromkeys(filter(None, present)):
            reached = self._reached_or_unknown(where, *again)
            if reached is None:
                continue
            if where == "local" and not reached:  # it may have been written, with these bytes
                keep = [i for i, other in enumerate(present) if other != where]
                findings[:], present = [findings[i] for i in keep], [present[i] for i in keep]
            for i, found in enumerate(findings):
                if present[i] == where:
                    findings[i] = _judged(found, reached)

    def _again(self, code: Translated, shape: Shape, params: bytes) -> Callable[..., object] | None:
        """A function that carries the launch out once more, unchecked and in the same order, with
        each byte of some memory (a key of NAMES) set to the function's argument. None if that is
        impossible, because what the launch before has written is missing.
        """
        order = self.machine.order.again(shape.dependent)
        if order is None or self.observer.unwritten.unknown:
            return None
        memory = self.machine.memory
        machine = Machine(memory, order)
        machine.symbols = self.machine.symbols
        plain = translate(code.program, code.kernel)

        def again(byte: int, where: str = "") -> object:
            machine.unwritten_smem = byte if where == "shared" else 0xFF
            machine.unwritten_tmem = byte if where == "tensor" else 0xFF
            machine.unwritten_local = byte if where == "local" else None
            machine.freed_tmem = byte if where == "freed" else None
            memory.put_behind(byte if where == "behind" else 0xFF)
            try:
                with memory.heap.again(memory):
                    held = where == "registers"
                    of = unwritten.with_registers(plain, byte) if held else plain
                    return machine.launch(of, shape, params)
            finally:
                memory.put_behind(0xFF)

        return again

    @staticmethod
    def _key(code: Translated, arguments: Arguments, dependence: DependentLaunch | None) -> tuple:
        """Of what launches may follow: the parameters may differ. That a launch is a dependent one
        matters where it has a rule for that.
        """
        return code, replace(arguments[0], dependent=False), dependence is not None

    def _dependence(self, code: Translated, arguments: Arguments) -> DependentLaunch | None:
        """The rule of dependent launches; None if no other launch overlaps with this one."""
        before = self.in_flight.get(self.queue) if arguments[0].dependent else None
        starts, beside = lets_start(code), self.beside
        alone = beside is None or not beside.earlier and can_be_late(code)
        before = before or InFlight()
        if not starts and not before.early and not before.late and alone:
            return None
        return DependentLaunch(before, code.kernel.name, starts, beside)

    def _incomplete(self) -> list[str]:
        """The parts of the launch that no rule looked at, a line each."""
        found = [
            f"{words.line(ins)}: the checker has no rule for {mnemonic(ins)}"
            for block, ins in self.machine.code.without_rule
            if self.machine.hits[block]
        ]
        if dropped := self.observer.findings.dropped:
            found.append(f"{dropped} finding(s) beyond the first {LIMIT} of the launch are dropped")
        rule = self.observer.unwritten
        if rule.reads and rule.unknown:
            found.append(rule.unknown)
        found += self.observer.not_judged
        return list(dict.fromkeys([*found, *self.observer.coverage.left_out()]))

    def fails(self, error: EmulatorError) -> EmulatorError:
        """The error, with the findings before it added: one of them is often its cause."""
        self.observer.conclude()
        findings = self.observer.findings
        if not findings:
            return error
        findings.arrange()
        findings[:] = self.observer.of_the_author()
        first, _, rest = str(error).partition("\n")
        errors = [f for f in findings if f.severity == ERROR]
        if errors:
            first += "; found before this, and perhaps its cause:"
            rest = f"the {error.kind} itself:\n{rest}"
        text = "\n".join([first, *_quoted(errors), rest])
        if remarks := [f for f in findings if f.severity != ERROR]:
            text = "\n".join([text, "remarks on what came before:", *_quoted(remarks)])
        return EmulatorError(error.kind, text, findings)

    # --- clusters that follow others --------------------------------------------------------------
    @property
    def _follower(self) -> Trail | None:
        following = self.observer.following
        return following.follower if following is not None else None

    def admits(self, cluster: Cluster) -> None:
        machine, following = self.machine, self.observer.following
        if following is not None:
            following.begin(cluster, alone=len(machine.ended()) == len(machine.resident))
            self.hits_before = machine.hits.copy()

    def abreast(self) -> FollowAbreast | None:
        return next_clusters(self.observer)

    def starts_first(self) -> bool:
        """A cluster that follows must be alone: before another cluster starts, or if the one that
        follows can go no further, it starts again, checked.
        """
        machine = self.machine
        if self._follower is None or machine.next_cluster is None and machine.order.queue:
            return False
        self._start_again()
        return True

    def turns(self, warp: Fragment) -> None:
        self.observer.turn_of(warp.cta.cluster)

    def interrupted(self, error: BaseException) -> bool:
        """A cluster that follows has departed from the others, or has failed: it starts again."""
        failed = isinstance(error, EmulatorError) and self._follower is not None
        if not failed and not isinstance(error, Departed):
            return False
        self._start_again()
        return True

    def _start_again(self) -> None:
        """Start the cluster that follows again, checked. Nothing of its first run is left."""
        machine = self.machine
        following, follower = self.observer.following, self._follower
        assert following is not None and follower is not None
        cluster, following.follower = follower.cluster, None
        machine.order.forget()
        machine.resident.remove(cluster)
        machine.started -= 1
        machine.hits[:] = self.hits_before
        follower.put_back()
        self.observer.take_back(cluster)
        fresh = Cluster(cluster.grid, cluster.index, cluster.shape)
        following.begin(fresh, alone=False)
        machine.admit(fresh, cluster.grid, [cta.sm for cta in cluster.ctas])

    # --- what the checker sees --------------------------------------------------------------------
    def issued(self, operation: Operation, warp: Fragment, apply: Action) -> Action:
        trail = self.observer.trail
        if trail is not None:
            trail.issue(operation, warp)
            if trail.follows:
                return apply
        return self.observer.operations.issued(operation, warp, apply)

    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        return self.observer.mbarriers.history(mbarrier)

    def slipped_waits(self) -> list[SlippedWait]:
        return self.observer.mbarriers.slipped_waits()

    def undefined(self, what: str, missing: str, ins: Instr | None, nobodys: str) -> None:
        ins, observer = ins or self.observer.ins, self.observer
        shown = next((who for said, who in WITNESSES.items() if said in what), "")
        works = (
            f"it works on today's chips ({shown})" if shown else "no chip has shown us what it does"
        )
        undefined = f"{works}; PTX leaves it undefined: another chip may differ"
        observer.found(
            KINDS[nobodys],
            what,
            f"this access: {words.line(ins)}",
            *(() if nobodys else (undefined,)),
            f"missing: {missing}",
            at=ins,
            severity=PORTABILITY,
        )
        if nobodys:
            observer.undecided[KINDS[nobodys], words.line(ins), ""] = nobodys

    def exits(self, state: WarpState, lanes: int) -> None:
        if state.live:
            return
        trail = self.observer.trail
        followed = trail is not None and trail.follows
        if trail is not None:
            trail.exited(state)
        if not followed:
            lifetime.warp_exited(self.observer, state)


def _judged(found: Finding, reached: str) -> Finding:
    """A finding about such a read. reached: a result that depends on it, in words, or ""."""
    if reached:
        return replace(found, details=(*found.details, reached), severity=ERROR)
    diagnosis = f"{found.diagnosis}, on which no result of the launch depends"
    return replace(found, diagnosis=diagnosis, severity=NOTE)


def _quoted(findings: list[Finding]) -> list[str]:
    more = len(findings) - SHOWN
    return [*map(str, findings[:SHOWN]), *([f"... {more} more"] if more > 0 else [])]
