"""The instruction table, ptxas and the emulator beside one another, statement by statement."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import b200.chip.instruction_set  # noqa: F401  registers every unit
from b200.errors import EmulatorError, Fault, Unsupported
from b200.isa import grammar
from b200.program.parse import parse
from b200.program.translate import translate
from lab.conformance.assembler import CRASH, Ptxas, module
from lab.conformance.instances import instances, neighbours

# ptxas wants more around them than a statement: a call, a table of labels.
UNTRIED = ("call", "brx")
BOGUS = "zzz"


@dataclass(frozen=True)
class Trial:
    """A statement that is tried. kind: "form" for one that the table has, "neighbour", "bogus"."""

    chapter: str
    statement: str
    kind: str


def tried(form: grammar.Form) -> bool:
    into_call = form.mnemonic == "st" and "param" in form.text
    return not (form.open or form.mnemonic in UNTRIED or into_call)


def trials(most: int, seed: int) -> list[Trial]:
    """Statements of every form, up to about `most` of one, and neighbours of each."""
    draw = random.Random(seed)
    found: dict[str, Trial] = {}
    for forms in grammar.table().values():
        for form in filter(tried, forms):
            for statement, modifiers in instances(form, most, draw):
                found[statement] = Trial(form.chapter, statement, "form")
                for other in neighbours(form, modifiers, statement, draw):
                    found.setdefault(other, Trial(form.chapter, other, "neighbour"))
    return list(found.values())


def bogus(statements: Iterable[Trial]) -> list[Trial]:
    """Each statement with a modifier that does not exist, at its end and before its last one."""
    made = []
    for trial in statements:
        opcode, _, rest = trial.statement.partition(" ")
        *words, last = opcode.split(".")
        for changed in ((opcode, BOGUS), (*words, BOGUS, last)):
            made.append(Trial(trial.chapter, f"{'.'.join(changed)} {rest}".strip(), "bogus"))
    return made


def verdict(statement: str) -> str:
    """ "" if the emulator translates a statement, else why not."""
    text = module([statement], grammar.NEWEST)
    try:
        program = parse(text)
        translate(program, program.kernels["k0"])
    except (EmulatorError, Fault, Unsupported) as error:
        return str(error).partition(" (PTX: ")[0] or "refused"
    return ""


@dataclass(frozen=True)
class Chapter:
    """What was counted of a chapter of the table.

    rows, modelled: of the table. legal, illegal: statements that some ptxas takes, and that none
    does; of these translated, and of the legal ones that are not: refused as not modelled, and as
    no form of PTX. bogus: statements with an invented modifier, and those that translate.
    """

    name: str
    rows: int
    modelled: int
    legal: int
    by_release: dict[str, int]
    translated: int
    not_modelled: int
    beside: int
    illegal: int
    illegal_translated: int
    bogus: int
    bogus_translated: int


def study(assemblers: Sequence[Ptxas], most: int, seed: int) -> tuple[list[Chapter], list[str]]:
    """(counts by chapter, statements that a ptxas takes and the table calls no form of PTX)."""
    drawn = trials(most, seed)
    ours = {t.statement: verdict(t.statement) for t in drawn}
    taken = [statement for statement, why in ours.items() if not why]
    said = {a.release: a.judge(list(ours), taken) for a in assemblers}
    invented = bogus(t for t in drawn if t.kind == "form" and not ours[t.statement])
    counts: dict[str, Counter] = {}
    beside = []
    for trial in drawn:
        count, statement = counts.setdefault(trial.chapter, Counter()), trial.statement
        takes = {release: not why for release, why in _of(said, statement).items()}
        if CRASH in _of(said, statement).values():
            continue
        translated = not ours[statement]
        if not any(takes.values()):
            count.update(illegal=1, illegal_translated=translated)
            continue
        known = not translated and "not modelled" in ours[statement]
        count.update(legal=1, translated=translated, not_modelled=known)
        count.update({release: 1 for release, taken in takes.items() if taken})
        if not translated and not known:
            beside.append(statement)
            count.update(beside=1)
    for trial in invented:
        translated = not verdict(trial.statement)
        counts[trial.chapter].update(bogus=1, bogus_translated=translated)
    return [_chapter(name, count, said) for name, count in sorted(counts.items())], beside


def _of(said: dict[tuple[int, int], dict[str, str]], statement: str) -> dict[tuple[int, int], str]:
    return {release: found[statement] for release, found in said.items()}


def _chapter(name: str, count: Counter, releases: Iterable[tuple[int, int]]) -> Chapter:
    forms = [f for forms in grammar.table().values() for f in forms if f.chapter == name]
    return Chapter(
        name=name,
        rows=len(forms),
        modelled=sum(not form.reason for form in forms),
        by_release={f"{major}.{minor}": count[major, minor] for major, minor in releases},
        **{key: count[key] for key in ("legal", "translated", "not_modelled", "beside")},
        **{key: count[key] for key in ("illegal", "illegal_translated")},
        **{key: count[key] for key in ("bogus", "bogus_translated")},
    )
