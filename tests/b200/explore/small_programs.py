"""Small random programs of warps that synchronise in every way, as PTX.

A warp executes a list of operations, each behind a label of its own. Values are the same in all
lanes of a warp, and nothing diverges. `%r6` holds the value that was read last.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

WORDS = ("s0", "s1", "g0", "g1")  # of shared memory of the CTA, of global memory
MBARRIERS = 2
AT = {"s0": "[sm]", "s1": "[sm+4]", "g0": "[%rd0]", "g1": "[%rd0+4]"}
LATE = 1000  # what %globaltimer is at least, once it is late
LINE = 100  # operation i of warp w stands at line LINE * (w + 1) + i


@dataclass(frozen=True)
class Program:
    """warps: the operations of each warp of a CTA, of each CTA in turn. counts: of the mbarriers.
    ctas: 1 or 2. cluster: whether the two are one cluster.
    """

    warps: tuple[tuple[tuple, ...], ...]
    counts: tuple[int, ...]
    ctas: int
    cluster: bool

    @property
    def threads(self) -> int:
        return 32 * len(self.warps) // self.ctas

    def __str__(self) -> str:
        lines = [f"{self.ctas} CTA(s), cluster {self.cluster}, counts {self.counts}"]
        return "\n".join([*lines, *(f"  warp {i}: {ops}" for i, ops in enumerate(self.warps))])


def draw(seed: int) -> Program:
    """The program of a seed: some events, of which each gives operations to some warps, and now and
    then a mistake.
    """
    rng = random.Random(seed)
    ctas = rng.choice((1, 1, 2))
    each = rng.choice((2, 2, 3, 4)) if ctas == 1 else rng.choice((1, 1, 2))
    cluster = ctas == 2 and rng.random() < 0.5
    counts = tuple(rng.choice((1, 1, 2)) for _ in range(MBARRIERS))
    warps: list[list[tuple]] = [[] for _ in range(ctas * each)]
    phases = [[0] * MBARRIERS for _ in range(ctas)]
    longest = LONGEST[len(warps)]
    while sum(map(len, warps)) < longest and rng.random() < 0.95:
        rng.choice(EVENTS)(rng, warps, each, phases, counts, cluster)
    for operations in warps:
        if operations and rng.random() < 0.2:
            _mistake(rng, operations)
    if rng.random() < 0.25:
        warps = [[_timed(rng, operation) for operation in operations] for operations in warps]
    return Program(tuple(map(tuple, warps)), counts, ctas, cluster)


def _mistake(rng: random.Random, operations: list[tuple]) -> None:
    i, kind = rng.randrange(len(operations)), rng.randrange(3)
    if kind == 0:
        operations.pop(i)
    elif kind == 1:
        operations.insert(i, ("exit",))
    else:
        operations.reverse()


def _timed(rng: random.Random, operation: tuple) -> tuple:
    """An operation, or one in its place that does not do so at any time: a poll that sleeps the
    longer the later it is, a wait that tries twice, a value that tells whether it is late.
    """
    if operation[0] == "poll" and rng.random() < 0.6:
        return "pace", *operation[1:]
    if operation[0] == "wait" and rng.random() < 0.4:
        return "tries", *operation[1:]
    if operation[0] in ("read", "look at", "look") and rng.random() < 0.1:
        return ("late",)
    return operation


LONGEST = {2: 10, 3: 9, 4: 8}  # operations of so many warps


def _flag(rng, warps, each, phases, counts, cluster):
    """One warp stores, others may poll for it; now and then another warp stores there, too."""
    word, value = rng.choice(WORDS), rng.choice((1, 1, 2))
    writer = rng.randrange(len(warps))
    warps[writer].append(
        rng.choice(
            (
                ("store", word, value),
                ("store", word, value),
                ("add", word, 1),
                ("exch", word, value),
                ("red", word, 1),
            )
        )
    )
    here = range(writer // each * each, writer // each * each + each)
    others = [w for w in (here if word[0] == "s" else range(len(warps))) if w != writer]
    for w in rng.sample(others, min(len(others), rng.choice((0, 1, 1, 2)))):
        operation = rng.choice(
            (
                ("poll", word, "ge", 1),
                ("poll", word, "eq", value),
                ("store", word, 0),
                ("store", word, 3 - value),
            )
        )
        warps[w].append(operation)


def _decide(rng, warps, each, phases, counts, cluster):
    """A warp reads, or asks, and what it finds decides whether it does something."""
    w, word = rng.randrange(len(warps)), rng.choice(WORDS)
    reads = (("read", word), ("look at", word), ("add", word, 1), ("exch", word, 2))
    look = ("look", rng.randrange(MBARRIERS), rng.choice((0, 0, 1)))
    what = (
        ("come", 1, 64),
        ("exit",),
        ("store", rng.choice(WORDS), 1),
        ("arrive", rng.randrange(MBARRIERS)),
        ("sync", 0, 0),
        ("red", word, 1),
    )
    warps[w] += [
        rng.choice((*reads, look)),
        ("skip", rng.choice(("eq", "ne")), rng.choice((0, 1))),
        rng.choice(what),
    ]


def _plain(rng, warps, each, phases, counts, cluster):
    word = rng.choice(WORDS)
    warps[rng.randrange(len(warps))].append(rng.choice((("plain", word, 1), ("look at", word))))


def _meet(rng, warps, each, phases, counts, cluster):
    """Warps of one CTA meet: all of them at barrier 0, or two at another."""
    first = rng.randrange(len(warps) // each) * each
    here = list(range(first, first + each))
    if cluster and rng.random() < 0.5:
        for operations in warps:
            operations.append(("cluster",))
    elif each < 2 or rng.random() < 0.4:
        for w in here:
            warps[w].append(("sync", 0, 0))
    else:
        one, two = rng.sample(here, 2)
        warps[one].append(("sync", 1, 64))
        warps[two].append(rng.choice((("sync", 1, 64), ("come", 1, 64))))


def _phase(rng, warps, each, phases, counts, cluster):
    """Some arrive on an mbarrier of their CTA as often as it expects, others may wait for it."""
    cta, b = rng.randrange(len(warps) // each), rng.randrange(MBARRIERS)
    here = list(range(cta * each, cta * each + each))
    for _ in range(counts[b]):
        warps[rng.choice(here)].append(("arrive", b))
    for w in rng.sample(here, rng.choice((1, 1, min(2, each)))):
        warps[w].append(("wait", b, phases[cta][b] % 2))
    phases[cta][b] += 1


EVENTS = (_flag, _flag, _decide, _plain, _meet, _meet, _phase, _phase)


def ptx(program: Program) -> str:
    """The program as a kernel `k(out, flags)`. Global words and shared words are 0 at the start."""
    body = [
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; shr.u32 %r2, %r0, 5;",
        f"mad.lo.u32 %r2, %r1, {len(program.warps) // program.ctas}, %r2;",
        "and.b32 %r3, %r0, 31; setp.eq.u32 %q, %r3, 0; setp.eq.u32 %q0, %r0, 0;",
        "ld.param.u64 %rd0, [flags]; mov.u32 %r6, 0;",
        "@%q0 st.volatile.shared.u32 [sm], %r6;",
        "@%q0 st.volatile.shared.u32 [sm+4], %r6;",
    ]
    for i, count in enumerate(program.counts):
        body.append(f"@%q0 mbarrier.init.shared::cta.b64 [sm+{64 + 8 * i}], {count};")
    body += ["@%q0 fence.mbarrier_init.release.cluster;", "BEGIN: bar.sync 0;"]
    for w in range(len(program.warps)):
        body.append(f"setp.eq.u32 %p1, %r2, {w}; @%p1 bra W{w};")
    body.append("ret;")
    for w, operations in enumerate(program.warps):
        body.append(f"W{w}:")
        for i, operation in enumerate(operations):
            body += [f".loc 1 {LINE * (w + 1) + i} 0", f"S{w}_{i}:", _text(operation, w, i)]
        body += [f".loc 1 {LINE * (w + 1) + len(operations)} 0", f"S{w}_{len(operations)}: ret;"]
        body += [f"S{w}_{len(operations) + 1}: ret;"]
    text = "\n ".join(body)
    return f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 flags)
.reqntid {program.threads}, 1, 1
{{
 .reg .pred %p<9>, %q, %q0; .reg .b32 %r<60>; .reg .b64 %rd<9>; .shared .align 128 .b8 sm[128];
 {text}
}}
.file 1 "small.ptx"
"""


def _text(operation: tuple, w: int, i: int) -> str:
    kind, *rest = operation
    name = f"{w}_{i}"
    if kind in ("store", "plain", "read", "look at", "poll", "pace", "add", "exch", "red"):
        word = rest[0]
        space = "shared" if word[0] == "s" else "global"
        at, strong = AT[word], f"relaxed.gpu.{space}.u32"
        value = rest[1] if len(rest) > 1 else 0
        if kind in ("store", "plain"):
            which = strong if kind == "store" else f"{space}.u32"
            return f"mov.u32 %r7, {value}; @%q st.{which} {at}, %r7;"
        if kind in ("read", "look at"):
            which = strong if kind == "read" else f"{space}.u32"
            return f"ld.{which} %r6, {at};"
        if kind == "poll":
            return (
                f"ld.{strong} %r8, {at}; setp.{rest[1]}.u32 %p2, %r8, {rest[2]}; @!%p2 bra S{name};"
            )
        if kind == "pace":
            return (
                f"ld.{strong} %r8, {at}; setp.{rest[1]}.u32 %p2, %r8, {rest[2]}; "
                f"@%p2 bra S{w}_{i + 1}; mov.u64 %rd2, %globaltimer; "
                f"setp.lt.u64 %p6, %rd2, {LATE}; @%p6 bra S{name}; "
                f"cvt.u32.u64 %r9, %rd2; nanosleep.u32 %r9; bra S{name};"
            )
        if kind == "red":
            return f"@%q red.relaxed.gpu.{space}.add.u32 {at}, {value};"
        form = f"atom.relaxed.gpu.{space}.{kind}.{'u32' if kind == 'add' else 'b32'}"
        return f"@%q {form} %r6, {at}, {value}; shfl.sync.idx.b32 %r6, %r6, 0, 31, -1;"
    if kind == "skip":
        return f"setp.{rest[0]}.u32 %p3, %r6, {rest[1]}; @%p3 bra S{w}_{i + 2};"
    at = f"[sm+{64 + 8 * rest[0]}]" if kind in ("arrive", "wait", "tries", "look") else ""
    look = "parity.acquire.cta.shared::cta.b64"
    return {
        "arrive": lambda: f"@%q mbarrier.arrive.release.cta.shared::cta.b64 _, {at};",
        "wait": lambda: f"mbarrier.try_wait.{look} %p4, {at}, {rest[1]}; @!%p4 bra S{name};",
        "tries": lambda: (
            f"mov.u32 %r10, 0; T{name}: mbarrier.test_wait.{look} %p4, {at}, {rest[1]}; "
            f"@%p4 bra S{w}_{i + 1}; add.u32 %r10, %r10, 1; setp.lt.u32 %p7, %r10, 2; "
            f"@%p7 bra T{name};"
        ),
        "look": lambda: f"mbarrier.test_wait.{look} %p5, {at}, {rest[1]}; selp.u32 %r6, 1, 0, %p5;",
        "sync": lambda: f"bar.sync {rest[0]}{f', {rest[1]}' if rest[1] else ''};",
        "come": lambda: f"bar.arrive {rest[0]}, {rest[1]};",
        "cluster": lambda: (
            f"barrier.cluster.arrive.aligned; C{name}: barrier.cluster.wait.aligned;"
        ),
        "exit": lambda: "ret;",
        "late": lambda: (
            f"mov.u64 %rd2, %globaltimer; setp.ge.u64 %p6, %rd2, {LATE}; selp.u32 %r6, 1, 0, %p6;"
        ),
    }[kind]()
