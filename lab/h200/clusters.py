"""Where a Hopper GPU puts CTAs, which SMs share answers of the L2, and what CTAs of a cluster take
to reach each other.

gpcs: SMs that were seen in one cluster, joined. order: SMs of a launch's CTAs, in clusters of so
many. few: SMs of a launch of so many CTAs, fewer than there are SMs. sharing: SMs load 32 KB again
and again from the L2, in groups that load the same: cycles a load by where the members of a group
lie. arrive: cycles from an mbarrier.arrive at another CTA's barrier until its waiting thread goes
on. push: cycles from a bulk copy of so many bytes into the next CTA's shared memory until that CTA
sees all of it, all CTAs at once. hand over: cycles from an mbarrier.arrive in the own CTA until the
warp that waits goes on, by which of its lanes wait. signal: cycles of a warp that waits for its
CTA's barrier, which is complete, and of which a lane then arrives at barriers of so many CTAs, by
predicate or after a branch. turnover: cycles from the end of a CTA until its SM has the first
instruction of the next, in clusters of so many that end all at once or one after the other; median
and largest.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from harness.measure import published
from harness.measure.kernels import RENDEZVOUS
from hopper.rewrite import TARGET
from lab.h200 import rig
from lab.h200.memory import Runner

ROUNDS = 64
FEW = (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112)  # CTAs
WORK = 6000  # cycles of a CTA, where CTAs follow each other on an SM
HEIGHT, STAGES = 64, 4
PUSHED = ((128, 1), (1024, 1), (4096, 1), (4096, 4), (16384, 1), (4096, 8), (32768, 1))
WAIT = f"""{{name}}: {rig.TRY} %p2, [{{barrier}}], {{parity}};
@!%p2 bra {{name}};"""
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"


def kernel(body: str, target: str = TARGET) -> str:
    """PTX. Parameters: out, data; the body finds %r1 to %r6, %rd1 and %p1 filled."""
    return rig.ptx(
        f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %cluster_ctarank;
    mov.u32 %r4, %cluster_nctarank; mov.u32 %r5, %smid; mov.b32 %r6, dyn;
    mul.wide.u32 %rd3, %r2, 8; add.u64 %rd1, %rd1, %rd3;
    setp.eq.u32 %p1, %r1, 0;
    {body}""",
        target=target,
    )


def _run(body: str, ctas: int, cluster: int, threads: int = 32, words: int = 1) -> torch.Tensor:
    """What each CTA writes, so many u64."""
    out, shape = rig.zeros(ctas * words), rig.row(ctas, threads, cluster, rig.SMEM)
    rig.launch(kernel(body), shape, out, rig.room(1 << 20))
    return out


def _mean(body: str, ctas: int, cluster: int, threads: int = 32) -> float:
    """Cycles a round, of whole clusters."""
    return _run(body, ctas // cluster * cluster, cluster, threads).double().mean().item() / ROUNDS


def places(ctas: int, cluster: int) -> list[list[int]]:
    """SMs of each cluster."""
    body = "cvt.u64.u32 %rd4, %r5; @%p1 st.global.u64 [%rd1], %rd4;"
    return _run(body, ctas // cluster * cluster, cluster).view(-1, cluster).tolist()


def gpcs(ctas: int) -> list[list[int]]:
    """SMs that clusters have shared, joined."""
    groups: list[set[int]] = []
    for cluster in (8, 4, 2) * 3:
        for found in places(ctas, cluster):
            members = set(found)
            for group in [g for g in groups if g & members]:
                members |= group
                groups.remove(group)
            groups.append(members)
    return sorted(sorted(g) for g in groups)


def sharing(tile_of: dict[int, int]) -> float:
    """Cycles a load of an SM; tile_of: the tile that an SM loads."""
    ctas = len(tile_of)
    loads, warm = 120, 40
    text = published.bandwidth_kernel(HEIGHT, STAGES, loads, warm, ctas, 0, 1)
    lookup = "mov.u32 %r5, %smid; mul.wide.u32 %rd5, %r5, 8; add.u64 %rd5, %rd5, %rd9;"
    lookup += f" ld.global.u32 %r5, [%rd5+8192]; mul.lo.u32 %r5, %r5, {HEIGHT};"
    begin = text.index("div.u32 %r5, %r2, 1;")
    end = text.index("mov.b32 %r6,", begin)
    text = text[:begin] + lookup + text[end:]
    text = text.replace(
        "ld.param.u64 %rd1, [out];", "ld.param.u64 %rd1, [out]; mov.b64 %rd9, %rd1;"
    )
    run = Runner(text, published.WIDTH, ctas * HEIGHT, (published.WIDTH, HEIGHT))
    table = torch.zeros(4096, dtype=torch.int64)
    for sm, tile in tile_of.items():
        table[1024 + sm] = tile
    run.out = table.cuda()
    run.params = struct.pack("<Q", run.out.data_ptr()) + run.params[8:]
    for _ in range(3):
        run.launch(rig.row(ctas, 32, 1, STAGES * published.WIDTH * 4 * HEIGHT + 1024))
    return run.cycles(ctas, loads - 1 - warm)


def groupings(found: list[list[int]]) -> dict[str, dict[int, int]]:
    """Names -> tiles of the SMs."""
    everyone = [sm for gpc in found for sm in gpc]
    place = {sm: (g, i) for g, gpc in enumerate(found) for i, sm in enumerate(gpc)}
    result = {"each its own": {sm: n for n, sm in enumerate(everyone)}}
    result["TPC"] = {sm: sm // 2 for sm in everyone}
    for size in (2, 4, 8):
        result[f"{size} of a GPC"] = {
            sm: 20 * place[sm][0] + place[sm][1] % -(-len(found[place[sm][0]]) // size)
            for sm in everyone
        }
        result[f"{size} of {size} GPCs"] = {
            sm: 20 * (place[sm][0] // size) + place[sm][1] for sm in everyone
        }
    numbers = {t: n for n, t in enumerate({t for g in result.values() for t in g.values()})}
    count = len(everyone)
    return {
        name: {sm: numbers[t] % count if len(set(g.values())) < count else t for sm, t in g.items()}
        for name, g in result.items()
    }


def turns(send: str) -> str:
    """Ping-pong: each side waits on its barrier %r6 and then signals the other, ROUNDS times. The
    side with %p3 false starts. Thread 0 of each CTA stores the cycles. {name} in `send`: for a
    label.
    """
    return f"""mov.b32 %r9, 0;
    mov.u64 %rd5, %clock64;
    ROUND: and.b32 %r10, %r9, 1;
    @%p3 bra LATER;
    {send.format(name="SENT")}
    {WAIT.format(name="FIRST", barrier="%r6", parity="%r10")}
    bra NEXT;
    LATER:
    {WAIT.format(name="OTHER", barrier="%r6", parity="%r10")}
    {send.format(name="BACK")}
    NEXT: add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, {ROUNDS}; @%p4 bra ROUND;
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5;
    @%p1 st.global.u64 [%rd1], %rd6;"""


def arrive(ctas: int, cluster: int) -> float:
    """Cycles of an arrive at another CTA: CTA after CTA of a cluster hands on a turn."""
    body = f"""@%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
    fence.mbarrier_init.release.cluster;
    {MEET}
    add.u32 %r7, %r3, 1; rem.u32 %r7, %r7, %r4; mapa.shared::cluster.u32 %r8, %r6, %r7;
    setp.ne.u32 %p3, %r3, 0;
    {turns("@%p1 mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r8];")}
    {MEET}"""
    return _mean(body, ctas, cluster) / cluster


def hand_over(lanes: str) -> float:
    """Cycles of an arrive at a barrier of the own CTA: two warps take turns. lanes: `all` wait; the
    `first` alone is in the loop, after a branch that parts it from the others; or all wait and the
    first arrives after such a branch, `by turns`.
    """
    send = "@%p5 mbarrier.arrive.shared::cta.b64 _, [%r8];"
    if lanes == "by turns":
        send = "@!%p5 bra {name};" + send.replace("@%p5 ", "") + "{name}: bar.warp.sync -1;"
    body = f"""@%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
    add.u32 %r7, %r6, 8; @%p1 mbarrier.init.shared::cta.b64 [%r7], 1;
    bar.sync 0;
    mov.u32 %r11, %laneid; setp.eq.u32 %p5, %r11, 0; setp.ge.u32 %p3, %r1, 32;
    mov.b32 %r8, %r7; @%p3 mov.b32 %r8, %r6; @%p3 mov.b32 %r6, %r7;
    {"@!%p5 bra OUT;" if lanes == "first" else ""}
    {turns(send)}
    OUT: bar.warp.sync -1; bar.sync 0;"""
    return _mean(body, 1, 1, 64) / 2


def signal(ctas: int, ranks: int, how: str) -> float:
    """Cycles of a round: the first lane completes a phase of the own barrier, all wait for it, and
    the first arrives at a barrier of each of the first `ranks` CTAs of a cluster of 4, if a mask in
    a register says so: `by predicate`, or `after a branch` that parts it from the others.
    """
    arrives = "".join(
        f"""and.b32 %r13, %r12, {1 << rank}; setp.ne.u32 %p5, %r13, 0;
        {"" if how == "after a branch" else "and.pred %p5, %p5, %p1;"}
        @%p5 mapa.shared::cluster.u32 %r14, %r7, {rank};
        @%p5 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r14];
        """
        for rank in range(ranks)
    )
    if how == "after a branch":
        arrives = f"@!%p1 bra MET; {arrives} MET: bar.warp.sync -1;"
    body = f"""@%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
    add.u32 %r7, %r6, 8; @%p1 mbarrier.init.shared::cta.b64 [%r7], {1 << 19};
    fence.mbarrier_init.release.cluster;
    {MEET}
    ld.global.u32 %r12, [%rd2]; not.b32 %r12, %r12; mov.b32 %r9, 0;
    mov.u64 %rd5, %clock64;
    ROUND: and.b32 %r10, %r9, 1;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r6];
    {WAIT.format(name="OWN", barrier="%r6", parity="%r10")}
    {arrives}
    add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, {ROUNDS}; @%p4 bra ROUND;
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5;
    @%p1 st.global.u64 [%rd1], %rd6;
    {MEET}"""
    return _mean(body, ctas, 4)


def push(ctas: int, cluster: int, nbytes: int, count: int) -> float:
    """Cycles until `count` copies of `nbytes` from one CTA have arrived in the next one."""
    copies = "\n".join(
        f"""@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r11+{i * nbytes}], [%r12+{i * nbytes}], {nbytes}, [%r8];"""
        for i in range(count)
    )
    body = f"""@%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
    fence.mbarrier_init.release.cluster;
    {MEET}
    add.u32 %r7, %r3, 1; rem.u32 %r7, %r7, %r4; mapa.shared::cluster.u32 %r8, %r6, %r7;
    add.u32 %r12, %r6, 1024; add.u32 %r13, %r6, {1024 + 65536};
    mapa.shared::cluster.u32 %r11, %r13, %r7; mov.b32 %r9, 0; mov.b64 %rd7, 0;
    ROUND: and.b32 %r10, %r9, 1;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], {nbytes * count};
    {RENDEZVOUS}
    mov.u64 %rd5, %clock64;
    {copies}
    {WAIT.format(name="ALL", barrier="%r6", parity="%r10")}
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5; add.u64 %rd7, %rd7, %rd6;
    add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, {ROUNDS}; @%p4 bra ROUND;
    @%p1 st.global.u64 [%rd1], %rd7;
    {MEET}"""
    return _mean(body, ctas, cluster)


def turnover(ctas: int, cluster: int, apart: int) -> list[float]:
    """[median, largest] of the cycles from the end of a CTA, which fills its SM, to the start of
    the next one there. apart: cycles by which each cluster works longer than the one before.
    """
    meets = RENDEZVOUS if cluster > 1 else ""
    body = f"""mov.u64 %rd5, %clock64;
    mul.wide.u32 %rd4, %r2, 16; add.u64 %rd1, %rd1, %rd4;
    {meets}
    div.u32 %r7, %r2, {cluster}; mad.lo.u32 %r7, %r7, {apart}, {WORK}; cvt.u64.u32 %rd7, %r7;
    WORK: mov.u64 %rd6, %clock64; sub.u64 %rd8, %rd6, %rd5;
    setp.lt.u64 %p2, %rd8, %rd7; @%p2 bra WORK;
    {meets}
    cvt.u64.u32 %rd4, %r5; mov.u64 %rd6, %clock64;
    @%p1 st.global.u64 [%rd1], %rd4;
    @%p1 st.global.u64 [%rd1+8], %rd5;
    @%p1 st.global.u64 [%rd1+16], %rd6;"""
    found = _run(body, ctas // cluster * cluster, cluster, 192, 3).view(-1, 3).tolist()
    on: dict[int, list[tuple[int, int]]] = {}
    for sm, start, end in found:
        on.setdefault(sm, []).append((start, end))
    gaps = [
        after[0] - before[1] for spans in on.values() for before, after in pairwise(sorted(spans))
    ]
    return [median(gaps), max(gaps)]


def results() -> rig.Results:
    ctas = rig.sms()
    found = gpcs(ctas)

    def of(kind: str, value: Any, *what: Any) -> rig.Row:
        value = round(value, 1) if isinstance(value, float) else value
        return {"kind": kind, "what": what, "value": value}

    yield of("gpcs", found, *map(len, found))
    yield of("order", [sm for (sm,) in places(ctas, 1)], 1)
    yield of("order", places(ctas, 2), 2)
    yield of("order", places(120, 4), 4)
    for n in FEW:
        yield of("few", [sm for (sm,) in places(n, 1)], n)
    for name, tiles in groupings(found).items():
        yield of("sharing", sharing(tiles), name)
    for lanes in ("all", "first", "by turns"):
        yield of("hand over", hand_over(lanes), lanes)
    for ranks in (1, 2, 4):
        for how in ("by predicate", "after a branch"):
            yield of("signal", signal(120, ranks, how), ranks, how)
    for cluster in (1, 2, 4, 8):
        for apart in (0, 100):
            yield of("turnover", turnover(3 * ctas, cluster, apart), cluster, apart)
    for cluster in (2, 4, 8):
        yield of("arrive", arrive(120, cluster), cluster)
        yield of("arrive alone", arrive(cluster, cluster), cluster)
        for nbytes, count in PUSHED:
            yield of("push", push(120, cluster, nbytes, count), cluster, nbytes, count)
