"""A mutation runs: what it is caught by, whether its cause is named, why a survivor is harmless.

The cause counts as named if the first three lines of what is said have both the place and the step;
what is indented below a likely cause (its facts, what to look for) is of its line.
Place: the line of submission.py that the mutated instruction stands in, or the line of its helper's
call, or the offset of the mbarrier that it works on in the kernel as it is. A report cannot name
the place of a fence or bar.warp.sync that is gone: there it is a line of what it stood between, the
mbarrier.init before, the tcgen05 instruction after, or an access of shared memory on either side.
Step: a word for what is missing (STEPS); a changed offset or coordinate needs the line alone, since
nothing is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from unittest import mock

import b200
import reference
from b200.checker import observer
from b200.checker.barriers.mbarriers import Mbarriers
from b200.errors import EmulatorError
from b200.program.module import Instr, Label
from b200.program.parse import parse
from lab.kernel_cases import poison
from lab.mutations.kinds import Mutation, Subject, mutated

SCHEDULES = (None, "late")
LINES = 3  # of what is said that must name the cause
LABEL = "MUTATED_HERE"


@dataclass(frozen=True)
class Verdict:
    """how: "survived", "wrong result", "finding: KIND", "portability: KIND" of a finding below an
    error, or the kind of an error of the emulator; said: the lines.
    """

    how: str
    said: tuple[str, ...] = ()


def verdict(gpu, subject: Subject, text: str) -> Verdict:
    """Of the first schedule that finds something."""
    for schedule in SCHEDULES:
        b200.install(check=True, schedule=schedule)
        program = parse(text)
        poison(subject.result)
        try:
            launch = gpu.launch(program, *subject.launch)
        except EmulatorError as error:
            return Verdict(error.kind, _first_lines(str(error)))
        errors = [finding for finding in launch.findings if finding.severity == "error"]
        if errors:
            return Verdict(f"finding: {errors[0].kind}", _first_lines(str(errors[0])))
        right, report = reference.check_implementation(subject.data, subject.result)
        if not right:  # of which eval.py says one line, then every finding there is
            said = "\n".join([report.splitlines()[0], *map(str, launch.findings)])
            return Verdict("wrong result", _first_lines(said))
        outside = [finding for finding in launch.findings if finding.severity == "portability"]
        if outside:  # which fails a case under --strict
            return Verdict(f"portability: {outside[0].kind}", _first_lines(str(outside[0])))
    return Verdict("survived")


def _first_lines(text: str) -> tuple[str, ...]:
    """The first lines of a report, each with the lines that are indented below it."""
    found: list[str] = []
    for line in text.splitlines():
        if found and line.startswith("    "):
            found[-1] += f" {line.strip()}"
        elif len(found) == LINES:
            break
        else:
            found.append(line.strip())
    return tuple(found)


# --- is the cause named? ------------------------------------------------------------------------

STEPS = {  # kind of the mutation, pattern of the mutated line, pattern of what must be said
    ("drop an arrive", ""): r"arriv|commit|expect_tx|\d+ of \d+ threads",
    ("drop a fence", r"fence\.proxy"): r"fence\.proxy|fence\.mbarrier_init",
    ("drop a fence", r"fence\.mbarrier_init"): r"fence\.proxy|fence\.mbarrier_init",
    ("drop a fence", r"tcgen05\.fence"): r"tcgen05\.fence",
    ("drop a wait", r"tcgen05\.wait"): r"tcgen05\.wait",
    ("drop a wait", r"bar\.warp"): r"bar\.warp\.sync",
    ("drop a wait", r"barrier\."): r"barrier|bar\.sync",
    ("drop a wait", r"setp"): r"wait|before .* (landed|committed)",
    ("change a parity", ""): r"phase off|parity|missing: .*wait",
    ("change a count", r"init"): r"count|arriv",
    ("change a count", r"expect_tx"): r"expect_tx|bytes",
    ("change an offset: a copy's barrier", ""): r"bytes|expect_tx|mbarrier",
    ("change an offset: a commit's barrier", ""): r"arriv|commit",
}


def places(gpu, subject: Subject) -> dict[str, set[int]]:
    """Instruction of the kernel as it is -> offsets of the mbarriers that it works on."""
    found: dict[str, set[int]] = {}

    class Noting(Mbarriers):
        def event(self, barrier, agent, what):
            ins = self.observer.ins
            if ins is not None:
                found.setdefault(ins.text.rstrip(";"), set()).add(barrier.object.offset)
            super().event(barrier, agent, what)

    _launched(gpu, subject, Noting)
    return found


def waited_for(gpu, subject: Subject) -> set[str]:
    """mbarrier.init of the mbarriers of which somebody has waited for a phase that was complete."""
    made: list[Mbarriers] = []

    class Kept(Mbarriers):
        def __init__(self, *parts):
            super().__init__(*parts)
            made.append(self)

    _launched(gpu, subject, Kept)
    return {text.rstrip(";") for each in made for text in each.exercised}


def _launched(gpu, subject: Subject, mbarriers: type[Mbarriers]):
    """Launch the kernel as it is, with this class for what the checker knows of mbarriers."""
    b200.install(check=True)
    with mock.patch.object(observer, "Mbarriers", mbarriers):
        gpu.launch(parse(subject.text), *subject.launch)


def named(subject: Subject, mutation: Mutation, said: tuple[str, ...], offsets: set[int]) -> bool:
    """Whether the first lines name place and step of a mutation."""
    text, line = "\n".join(said), subject.text.splitlines()[mutation.line]
    at = [mutation.line, *_around(subject, mutation)]
    numbers = {n for i in at for n in source_lines(subject, i)}
    lines = any(re.search(rf"submission\.py:{n}\b", text) for n in numbers)
    place = lines or any(re.search(rf"\b{offset:#x}\b", text) for offset in offsets)
    changed = line + " ".join(mutation.after)
    steps = [
        step
        for (kind, of), step in STEPS.items()
        if mutation.kind.startswith(kind) and re.search(of, changed)
    ]
    if not steps:
        return lines
    return place and any(re.search(step, text) for step in steps)


def _around(subject: Subject, mutation: Mutation) -> list[int]:
    """Lines of PTX that a dropped fence or warp barrier stood between: its own place is gone."""
    lines, i = subject.text.splitlines(), mutation.line

    def before(pattern: str) -> list[int]:
        return [j for j in range(i) if re.match(pattern, lines[j])][-1:]

    def behind(pattern: str) -> list[int]:
        return [j for j in range(i + 1, len(lines)) if re.match(pattern, lines[j])][:1]

    if "bar.warp.sync" in lines[i]:
        shared = r"\s*(@!?%p\d+\s+)?((ld|st)\.shared|(ld|st)matrix)"
        return before(shared) + behind(shared)
    if mutation.kind != "drop a fence":
        return []
    return behind(r"\s*tcgen05\.") if "tcgen05" in lines[i] else before(r"\s*mbarrier\.init")


def source_lines(subject: Subject, line: int) -> list[int]:
    """Lines of submission.py that a line of PTX stands in, innermost first, but for the kernel's
    and its roles', which every instruction stands in.
    """
    text = subject.text.splitlines()
    marked = [*text[:line], f"{LABEL}:", *text[line:]]
    (kernel,) = parse("\n".join(marked)).kernels.values()
    body = iter(kernel.body)
    next(item for item in body if isinstance(item, Label) and item.name.startswith(LABEL))
    loc = next(item for item in body if isinstance(item, Instr)).loc
    return [call.line for call in loc.chain()][:2] if loc is not None else []


# --- survivors ----------------------------------------------------------------------------------

PLACE, BRANCH = re.compile(r"\s*(\$?\w+):"), re.compile(r"\bbra\S*\s+(\$?\w+)")
UNEXPLAINED = "not explained: the checker or the tests may lack something"


def why_harmless(gpu, subject: Subject, mutation: Mutation) -> str:
    """Why a mutation changes nothing, with what shows it; UNEXPLAINED if no rule says so."""
    lines = subject.text.splitlines()
    line = lines[mutation.line].strip()
    if line.startswith("mbarrier.init"):
        if line.rstrip(";") not in waited_for(gpu, subject):
            return (
                "no phase of this barrier is waited for in this launch: it is too short for that, "
                "or has no use for it"
            )
    if line.startswith("tcgen05.wait::ld"):
        return (
            "what reads the registers waits for them (a true dependency, PTX ISA 9.7.16.6), and "
            "no MMA writes these columns again before a later tcgen05.wait::ld of the warp, or in "
            "a launch of one tile a CTA at all"
        )
    if line.startswith("tcgen05.fence::after_thread_sync"):
        following = next((t for t in lines[mutation.line + 1 :] if "tcgen05." in t), "")
        if "fence::after_thread_sync" in following:
            return "no tcgen05 instruction stands between it and the next fence of its kind"
    if line.startswith("tcgen05.commit") and "persistent" not in subject.name:
        return "the last commits of a stage: the launch has one tile, nobody loads the stage again"
    if line.startswith("bar.warp.sync"):
        first = "the first use of the staging buffer in a tile: "
        if "persistent" not in subject.name:
            return first + "nothing has read it before, for this launch has one tile a CTA"
        if _waited_for(lines, mutation.line):
            return first + "since it was read, the warp has waited for the next tile's MMAs"
    return UNEXPLAINED


def _waited_for(lines: list[str], at: int) -> bool:
    """Whether an mbarrier is waited for before a line each time that it is executed, and the
    staging buffer not used in between: no branch from below comes back after the wait.
    """
    for start in range(at - 1, -1, -1):
        if "ld.shared.v" in lines[start] or "stmatrix" in lines[start]:
            return False
        if "mbarrier.try_wait" in lines[start]:
            between = {m[1] for line in lines[start:at] if (m := PLACE.match(line))}
            below = {m[1] for line in lines[at:] if (m := BRANCH.search(line))}
            return not between & below
    return False


@dataclass(frozen=True)
class Result:
    """A mutation and its fate, as a line of JSON.

    number: of the draw. ptx: the mutated line; line: of submission.py. how, said: of Verdict.
    named: whether the first lines have the cause. why: of a survivor, why it is harmless.
    """

    number: int
    launch: str
    mutation: str
    ptx: str
    line: int
    how: str
    said: tuple[str, ...]
    named: bool
    why: str

    @property
    def caught(self) -> bool:
        return self.how != "survived"


def trial(gpu, number: int, subject: Subject, mutation: Mutation, works_on: dict) -> Result:
    """works_on: `places` of the subject."""
    found = verdict(gpu, subject, mutated(subject, mutation))
    ptx = subject.text.splitlines()[mutation.line].strip()
    caught = found.how != "survived"
    return Result(
        number,
        subject.name,
        mutation.kind,
        ptx[:110],
        (source_lines(subject, mutation.line) or [0])[-1],
        found.how,
        found.said,
        caught and named(subject, mutation, found.said, works_on.get(ptx.rstrip(";"), set())),
        "" if caught else why_harmless(gpu, subject, mutation),
    )
