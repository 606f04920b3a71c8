"""Random single mutations of submission.py's compiled PTX: how many are caught, and by what.

    python -m tests.submission.mutations [--count 60] [--seed 1] [--json FILE]

A mutation drops an arrive, a fence or a wait, or changes a count, an offset, a parity or a
coordinate. It runs in the emulator under two schedules and is caught by a guard, a deadlock report,
a finding of the checker, or a wrong result. No draw is left out. Survivors are listed with why
they are harmless.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

import b200
import reference
import submission
from b200.errors import EmulatorError
from b200.program.parse import parse
from tests.submission import submission_support as support

SCHEDULES = (None, "late")
SCRATCH = "%mutated"  # a register of the mutation's own


@dataclass(frozen=True)
class Subject:
    """A compiled launch to mutate. launch: what Gpu.launch takes behind the program."""

    name: str
    data: tuple
    text: str
    launch: tuple
    result: object


@dataclass(frozen=True)
class Mutation:
    """kind: what is done; line: index of the line; after: the lines that replace it."""

    kind: str
    line: int
    after: tuple[str, ...]


# --- what may be mutated ------------------------------------------------------------------------

DROPS = {
    "drop an arrive": r"mbarrier\.arrive|tcgen05\.commit|barrier\.cta\.arrive",
    "drop a fence": r"fence\.(proxy|mbarrier_init)|tcgen05\.fence",
    "drop a wait": r"tcgen05\.wait|barrier\.(cta\.)?sync|bar\.warp\.sync",
}
PARITY = re.compile(r"(.*mbarrier\.try_wait\.parity\S*\s+\S+,\s*\[\S+\],\s*)(\S+?)(,.*|;.*)")
COUNT = re.compile(r"(.*(?:mbarrier\.init|arrive\.expect_tx)\S*\s+.*\],\s*)(\S+?)(;.*)")
OFFSETS = {
    "offset of a copy's target": (re.compile(r"(.*cp\.async\.bulk\.\S+\s+\[)(%r\d+)(\].*)"), 1024),
    "offset of a copy's source": (
        re.compile(r"(.*cp\.async\.bulk\.shared::\S+\s+\[%r\d+\],\s*\[)(%rd\d+)(\].*)"),
        512,
    ),
    "a copy's barrier": (re.compile(r"(.*cp\.async\.bulk\..*\[)(%r\d+)(\],\s*%rd\d+;.*)"), 8),
    "a descriptor": (re.compile(r"(.*tcgen05\.(?:mma|cp)\S+\s+\[%r\d+\],\s*)(%rd\d+)([,;].*)"), 2),
    "a tensor-memory address": (
        re.compile(r"(.*tcgen05\.(?:mma|cp|ld)\S+\s+.*\[)(%r\d+)(\].*)"),
        4,
    ),
    "a commit's barrier": (re.compile(r"(.*tcgen05\.commit\S+\s+\[)(%r\d+)(\].*)"), 8),
}
COORDINATES = re.compile(
    r"(.*cp\.async\.bulk\.tensor\S+\s+\[\S+\],\s*\[%rd\d+,\s*\{)([^}]*)(\}\].*)"
)
WAIT = re.compile(r".*mbarrier\.try_wait\.parity\S*\s+(\S+),")


def added(register: str, by: int) -> tuple[str, str]:
    """(an instruction that adds to a register, the register of the sum)."""
    wide = register.startswith("%rd")
    scratch = SCRATCH + ("64" if wide else "32")
    return f"add.s{64 if wide else 32} {scratch}, {register}, {by};", scratch


def candidates(lines: list[str], rng: random.Random) -> dict[str, list[Mutation]]:
    """Every possible mutation by kind."""
    found: dict[str, list[Mutation]] = {}

    def add(kind, line, *after):
        found.setdefault(kind, []).append(Mutation(kind, line, after))

    for i, text in enumerate(lines):
        for kind, pattern in DROPS.items():
            if re.match(rf"\s*(@!?%p\d+\s+)?({pattern})", text):
                add(kind, i)
        if match := WAIT.match(text):
            add("drop a wait", i, f"setp.eq.u32 {match.group(1)}, 0, 0;")
        if match := PARITY.match(text):
            add(
                "change a parity",
                i,
                f"xor.b32 {SCRATCH}32, {match.group(2)}, 1;",
                match.group(1) + f"{SCRATCH}32" + match.group(3),
            )
        if (match := COUNT.match(text)) and match.group(2).startswith("%"):
            by = rng.choice((1, 2)) if "init" in text else rng.choice((-512, 512, -16, 1024))
            first, scratch = added(match.group(2), by)
            add("change a count", i, first, match.group(1) + scratch + match.group(3))
        for what, (pattern, by) in OFFSETS.items():
            if match := pattern.match(text):
                first, scratch = added(match.group(2), rng.choice((by, -by, 2 * by)))
                add(
                    f"change an offset: {what}", i, first, match.group(1) + scratch + match.group(3)
                )
        if match := COORDINATES.match(text):
            add("change a coordinate", i, *_coordinate(match, rng))
    return found


def _coordinate(match, rng: random.Random) -> tuple[str, ...]:
    """One coordinate moved, or the first two swapped."""
    parts = [p.strip() for p in match.group(2).split(",")]
    if rng.random() < 0.3:
        parts[0], parts[1] = parts[1], parts[0]
        return (match.group(1) + ", ".join(parts) + match.group(3),)
    which = rng.randrange(2)
    first, scratch = added(parts[which], rng.choice((64, 128, -128)))
    parts[which] = scratch
    return first, match.group(1) + ", ".join(parts) + match.group(3)


def choose(subjects: list[Subject], rng: random.Random) -> tuple[Subject, Mutation]:
    """A subject, a kind and a place, each with equal chances."""
    subject = rng.choice(subjects)
    found = candidates(subject.text.splitlines(), rng)
    families: dict[str, list[Mutation]] = {}
    for kind, mutations in found.items():
        families.setdefault(kind.split(":")[0], []).extend(mutations)
    return subject, rng.choice(families[rng.choice(sorted(families))])


# --- running ------------------------------------------------------------------------------------


def subjects(gpu) -> list[Subject]:
    """Small launches that use the kernel's parts: stages, a CTA pair, a K split, persistence."""
    config = submission.Config
    # A chip of 4 small SMs: a persistent CTA gets several tiles of a small problem, and the ring of
    # stages goes around.
    submission.clusters_at_once = lambda size: max(1, 4 // size)
    submission.SMEM_BYTES = 120 * 1024
    cases = [
        ("gemm", support.gemm(256, 64, 2304), config()),
        ("dual, persistent", support.dual(128, 64, 1536, 16), config(persistent=True)),
        (
            "CTA pair, persistent",
            support.gemm(256, 64, 1024, 6),
            config(cta_group=2, persistent=True),
        ),
        ("K split", support.gemm(128, 128, 4096), config(token_tile=128, split_k=2)),
        (
            "persistent, one accumulator",
            support.gemm(128, 256, 512, 12),
            config(token_tile=256, persistent=True),
        ),
    ]
    return [_subject(gpu, *case) for case in cases]


def _subject(gpu, name: str, problem, config) -> Subject:
    data = support.inputs(problem, 7)
    groups, result = submission.unpack(data)
    taken: list[tuple] = []
    gpu.execute = lambda *arguments: taken.append(arguments)  # of Gpu.execute; nothing runs
    try:
        submission.launch(submission.problem_of(data, groups), groups, config)
    finally:
        del gpu.execute, gpu.launches[-1:]
    ((program, kernel, *rest),) = taken
    return Subject(name, data, program.text, (kernel.name, *rest), result)


def mutated(subject: Subject, mutation: Mutation) -> str:
    return edited(subject, mutation.line, mutation.after)


def edited(subject: Subject, line: int, after: tuple[str, ...]) -> str:
    """The text with a line replaced."""
    lines = subject.text.splitlines()
    lines[line : line + 1] = after
    registers = next(i for i, line in enumerate(lines) if line.strip().startswith(".reg"))
    lines[registers:registers] = [f".reg .b32 {SCRATCH}32;", f".reg .b64 {SCRATCH}64;"]
    return "\n".join(lines)


def verdict(gpu, subject: Subject, text: str) -> tuple[str, str]:
    """(verdict, first line of what was said) of the first schedule that finds something."""
    for schedule in SCHEDULES:
        b200.install(check=True, schedule=schedule)
        program = parse(text)
        support.poison(subject.result)
        try:
            launch = gpu.launch(program, *subject.launch)
        except EmulatorError as error:
            return error.kind, str(error).splitlines()[0]
        errors = [finding for finding in launch.findings if finding.severity == "error"]
        if errors:
            return f"finding: {errors[0].kind}", errors[0].diagnosis
        right, report = reference.check_implementation(subject.data, subject.result)
        if not right:
            return "wrong result", report.splitlines()[0]
    return "survived", ""


def source_line(subject: Subject, mutation: Mutation) -> str:
    """The .loc above a line of PTX."""
    for line in reversed(subject.text.splitlines()[: mutation.line]):
        if match := re.match(r"\s*\.loc\s+\d+\s+(\d+)", line):
            return match.group(1)
    return "?"


# --- survivors ----------------------------------------------------------------------------------

UNEXPLAINED = "not explained: the checker or the tests may lack something"
INIT_FENCE = re.compile(r"\s*fence\.(mbarrier_init|proxy\.async)")


def why_harmless(gpu, subject: Subject, mutation: Mutation) -> str:
    """Why a mutation changes nothing, with what shows it; UNEXPLAINED if no rule says so."""
    lines = subject.text.splitlines()
    line = lines[mutation.line].strip()
    if line.startswith("mbarrier.init"):
        b200.install(check=True)
        gpu.launch(parse(subject.text), *subject.launch[1:])
        waited = {text.rstrip(";") for text in gpu.machine.observer.exercised}
        if line.rstrip(";") not in waited:
            return "nobody waits on this barrier in this launch: its role has no work here"
    if INIT_FENCE.match(line):
        return _doubled_fence(gpu, subject, mutation, lines)
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
    if line.startswith("bar.warp.sync") and "persistent" not in subject.name:
        return "the first use of the staging buffer in this launch: nothing has read it before"
    return UNEXPLAINED


def _doubled_fence(gpu, subject: Subject, mutation: Mutation, lines: list[str]) -> str:
    """Two fences follow each other, each enough: shown by dropping both."""
    near = range(max(0, mutation.line - 8), mutation.line + 9)
    twins = [i for i in near if i != mutation.line and INIT_FENCE.match(lines[i])]
    for twin in twins:
        first, last = sorted((mutation.line, twin))
        both = [*lines[:first], "", *lines[first + 1 : last], "", *lines[last + 1 :]]
        how, _ = verdict(gpu, subject, "\n".join(both))
        if how != "survived":
            return f"`{lines[twin].strip()}` beside it publishes the same; without both: {how}"
    return UNEXPLAINED


@dataclass(frozen=True)
class Result:
    """A mutation and its fate. how: of `verdict`; why: of a survivor, why it is harmless."""

    subject: str
    mutation: Mutation
    line: str
    source: str
    how: str
    said: str
    why: str = ""

    def __str__(self) -> str:
        where = f"submission.py:{self.source}: {self.line[:110]}"
        return f"{self.how:24} {self.subject}: {self.mutation.kind}, {where}"


def trial(gpu, subject: Subject, mutation: Mutation) -> Result:
    how, said = verdict(gpu, subject, mutated(subject, mutation))
    why = why_harmless(gpu, subject, mutation) if how == "survived" else ""
    line = subject.text.splitlines()[mutation.line].strip()
    return Result(
        subject.name, mutation, line, source_line(subject, mutation), how, said[:140], why
    )


def draw(all_subjects: list[Subject], rng: random.Random, count: int):
    """`count` different mutations."""
    seen = set()
    while len(seen) < count:
        subject, mutation = choose(all_subjects, rng)
        key = subject.name, mutation.line, mutation.after
        if key not in seen:
            seen.add(key)
            yield subject, mutation


def summary(results: list[Result], seed: int) -> str:
    caught = [r for r in results if r.how != "survived"]
    tally = Counter(r.how for r in caught)
    return (
        f"{len(caught)} of {len(results)} caught ({100 * len(caught) / len(results):.0f} %), seed "
        f"{seed}: " + ", ".join(f"{n} {how}" for how, n in tally.most_common())
    )


def record(results: list[Result], seed: int) -> dict:
    """The run as harness/figure_tables.py renders it: counts by kind, the survivors one by one."""
    survivors = [r for r in results if r.how == "survived"]
    kinds = Counter(r.mutation.kind.split(":")[0] for r in results)
    lived = Counter(r.mutation.kind.split(":")[0] for r in survivors)
    return {
        "count": len(results),
        "seed": seed,
        "how": dict(Counter(r.how for r in results if r.how != "survived").most_common()),
        "kinds": [
            {"kind": kind, "drawn": n, "caught": n - lived[kind]}
            for kind, n in sorted(kinds.items())
        ],
        "survivors": [
            {"launch": r.subject, "mutation": r.mutation.kind, "ptx": r.line[:60], "why": r.why}
            for r in survivors
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = b200.install(check=True)
    rng, all_subjects = random.Random(options.seed), subjects(gpu)
    for subject in all_subjects:
        assert verdict(gpu, subject, subject.text)[0] == "survived", f"{subject.name} is not clean"
    results = []
    begin = time.perf_counter()
    for subject, mutation in draw(all_subjects, rng, options.count):
        results.append(trial(gpu, subject, mutation))
        print(f"{len(results):3} {results[-1]}\n    {results[-1].said}", flush=True)
    print(f"\n{summary(results, options.seed)}, in {time.perf_counter() - begin:.0f} s")
    survivors = [r for r in results if r.how == "survived"]
    print("survivors:", *(f"\n  {r}\n    {r.why}" for r in survivors))
    if options.json:
        options.json.write_text(json.dumps(record(results, options.seed), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
