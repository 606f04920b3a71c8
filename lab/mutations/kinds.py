"""What may be mutated in submission.py's compiled PTX, and the launches it is mutated in."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import b200
import submission
from b200.chip.launch import Launch
from b200.program.parse import parse
from lab.kernel_cases import dual, gemm, inputs

SCRATCH = "%mutated"  # a register of the mutation's own


@dataclass(frozen=True)
class Subject:
    """A compiled launch to mutate. launch: what Gpu.launch takes after the program. idle: PTX that
    no warp executes in it, such as the loads of a smaller tile: a change there changes nothing.
    Lines as `numbered` has them.
    """

    name: str
    data: tuple
    text: str
    launch: tuple
    result: Any
    idle: frozenset[tuple[str, int]] = frozenset()


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


def candidates(subject: Subject, rng: random.Random) -> dict[str, list[Mutation]]:
    """Every possible mutation of what the launch executes, by kind."""
    found: dict[str, list[Mutation]] = {}

    def add(kind, line, *after):
        found.setdefault(kind, []).append(Mutation(kind, line, after))

    lines = subject.text.splitlines()
    for i, (text, line) in enumerate(zip(lines, numbered(lines), strict=True)):
        if line in subject.idle:
            continue
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
    found = candidates(subject, rng)
    families: dict[str, list[Mutation]] = {}
    for kind, mutations in found.items():
        families.setdefault(kind.split(":")[0], []).extend(mutations)
    return subject, rng.choice(families[rng.choice(sorted(families))])


# --- where it is mutated -------------------------------------------------------------------------


def subjects(gpu) -> list[Subject]:
    """Small launches that use the kernel's parts: stages, a CTA pair, a K split, persistence."""
    config = submission.Config
    # A chip of 4 small SMs: a persistent CTA gets several tiles of a small problem, and the ring of
    # stages goes around.
    submission.clusters_at_once = lambda size: max(1, 4 // size)
    submission.SMEM_BYTES = 120 * 1024
    cases = [
        ("gemm", gemm(256, 64, 2304), config()),
        ("dual, persistent", dual(128, 64, 1536, 16), config(persistent=True)),
        ("dual, tokens as rows", dual(64, 128, 2304), config(swap_ab=False)),
        (
            "CTA pair, persistent",
            gemm(256, 64, 1024, 6),
            config(cta_group=2, persistent=True),
        ),
        ("K split", gemm(128, 128, 4096), config(tile_n=128, split_k=2)),
        (
            "persistent, one accumulator",
            gemm(128, 256, 512, 12),
            config(tile_n=256, persistent=True),
        ),
    ]
    return [_subject(gpu, *case) for case in cases]


def _subject(gpu, name: str, problem, config) -> Subject:
    data = inputs(problem, 7)
    groups, result = submission.unpack(data)
    taken: list[tuple] = []

    def execute(program, kernel, shape, params):  # nothing runs
        taken.append((program, kernel, *shape.sizes, params))
        return Launch(kernel.name, *shape.sizes)

    gpu.execute = execute
    try:
        submission.launch(submission.problem_of(data, groups), groups, config)
    finally:
        del gpu.execute, gpu.launches[-1:]
    ((program, kernel, *rest),) = taken
    launch = (kernel.name, *rest)
    return Subject(name, data, program.text, launch, result, idle(gpu, program.text, launch))


def plain(text: str) -> str:
    """A line of PTX without its white space and its end."""
    return " ".join(text.split()).rstrip(";")


def numbered(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each line, plain, and how many like it stand before it: branches repeat lines."""
    alike: Counter[str] = Counter()
    for line in map(plain, lines):
        yield line, alike[line]
        alike[line] += 1


def idle(gpu, text: str, launch: tuple) -> frozenset[tuple[str, int]]:
    """Lines of PTX that stand where no warp comes in a launch."""
    b200.install(check=False)
    gpu.launch(parse(text), *launch)
    blocks = zip(gpu.machine.code.structure, gpu.machine.hits)
    ops = [(op.ins.text, hits) for block, hits in blocks for op in block.ops]
    lines = numbered(line for line, _ in ops)
    return frozenset(line for line, (_, hits) in zip(lines, ops, strict=True) if not hits)


def draw(
    all_subjects: list[Subject], rng: random.Random, count: int
) -> Iterator[tuple[Subject, Mutation]]:
    """`count` different mutations."""
    seen = set()
    while len(seen) < count:
        subject, mutation = choose(all_subjects, rng)
        key = subject.name, mutation.line, mutation.after
        if key not in seen:
            seen.add(key)
            yield subject, mutation


def mutated(subject: Subject, mutation: Mutation) -> str:
    return edited(subject, mutation.line, mutation.after)


def edited(subject: Subject, line: int, after: tuple[str, ...]) -> str:
    """The text with a line replaced."""
    lines = subject.text.splitlines()
    lines[line : line + 1] = after
    registers = next(i for i, line in enumerate(lines) if line.strip().startswith(".reg"))
    lines[registers:registers] = [f".reg .b32 {SCRATCH}32;", f".reg .b64 {SCRATCH}64;"]
    return "\n".join(lines)
