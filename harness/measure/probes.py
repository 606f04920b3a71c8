"""The probes: one micro-kernel for each constant of the clock that a chip can tell.

A probe's value depends on several constants, but mostly on the one it is named after; fit.py takes
them in this order, so that a probe's other constants are known by the time it is used.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.measure.devices import EMPTY_CALLS, Device, ProbeKernel
from harness.measure.kernels import (
    BULK,
    EXPECT,
    RENDEZVOUS,
    ROUNDS,
    TENSOR,
    WAIT,
    rounds,
    tensor_memory,
)
from harness.measure.published import ITERATIONS, WIDTH, bandwidth_kernel, mma_kernel

BLACKWELL = "sm_100"  # what has tcgen05


@dataclass(frozen=True)
class Probe:
    """A measurement. constant: the one it tells, of b200/clock/constants.toml. measure: its value
    on a device, in `unit`. tcgen05: only on Blackwell.
    """

    name: str
    constant: str
    unit: str
    measure: Callable[[Device], float]
    tcgen05: bool = False

    def runs_on(self, device: Device) -> bool:
        return not self.tcgen05 or device.target.startswith(BLACKWELL)


def _median(make: Callable[[str], ProbeKernel], skip: int = 2) -> Callable[[Device], float]:
    """clk of a round, the median of those after the first `skip`, over all CTAs."""

    def measure(device: Device) -> float:
        kernel = make(device.target)
        found = device.run(kernel)
        count = kernel.words // kernel.ctas
        return statistics.median(c for i, c in enumerate(found) if i % count >= skip and c)

    return measure


def _shared_load(target: str) -> ProbeKernel:
    """16 loads from shared memory, each from the address that the one before it gives; volatile,
    or ptxas takes the value from the store.
    """
    setup = "add.u32 %r20, %r9, 1024; st.shared.u32 [%r20], %r20;"
    return rounds("ld.volatile.shared.u32 %r20, [%r20];\n" * 16, target, setup)


def _cta_barrier(target: str) -> ProbeKernel:
    """Eight barriers of four warps."""
    return rounds("bar.sync 0;\n" * 8, target, threads=128)


def _mbarrier(target: str) -> ProbeKernel:
    """An arrive that completes a phase, and the wait for it."""
    arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r10];"
    return rounds(f"{arrive}\n{WAIT}", target)


def _cluster_barrier(target: str) -> ProbeKernel:
    """Four relaxed barriers of a cluster of two."""
    return rounds(f"{RENDEZVOUS}\n" * 4, target, ctas=2, cluster=2)


def _fence(target: str) -> ProbeKernel:
    """Two fences of all memory; the second finds an idle SM."""
    return rounds("membar.gl;\nmembar.gl;", target)


def _distributed_load(target: str) -> ProbeKernel:
    """Eight dependent loads from the peer's shared memory."""
    setup = """add.u32 %r21, %r9, 1024; mapa.shared::cluster.u32 %r22, %r21, %r3;
    st.shared.u32 [%r21], %r22; mapa.shared::cluster.u32 %r20, %r21, 1;
    barrier.cluster.arrive; barrier.cluster.wait;"""
    chain = "ld.volatile.shared::cluster.u32 %r20, [%r20];\n" * 8
    return rounds(chain, target, setup, after=RENDEZVOUS, ctas=2, cluster=2)


def _bulk(target: str, copies: int) -> ProbeKernel:
    """Bulk copies of 16 bytes of different lines, asked for in a row by one thread; the wait."""
    asked = "".join(
        f"@%p1 {BULK} [%r11], [%rd{10 + i % 2}], 16, [%r10];\n"
        f"add.u64 %rd{10 + i % 2}, %rd{10 + i % 2}, 256;\n"
        for i in range(copies)
    )
    start = f"add.u32 %r11, %r9, 1024; @%p1 {EXPECT}{copies * 16};"
    begin = "mov.u64 %rd10, %rd2; add.u64 %rd11, %rd2, 128;"
    return rounds(f"{start}\n{asked}{WAIT}", target, before=begin)


DISTANCE = 40960  # bytes between cold loads: another channel, mostly the same page


def _cold(target: str) -> ProbeKernel:
    """A bulk copy of 128 bytes from DRAM, from another channel each round."""
    body = f"add.u32 %r11, %r9, 1024; @%p1 {EXPECT}128;\n@%p1 {BULK} [%r11], [%rd2], 128, [%r10];"
    after = f"add.u64 %rd2, %rd2, {DISTANCE};"
    data = DISTANCE * ROUNDS
    return rounds(f"{body}\n{WAIT}", target, after=after, data_bytes=data, cold=True)


def _tensor(target: str, copies: int, rows: int, **launch: Any) -> ProbeKernel:
    """Tensor copies of `rows` rows of 128 bytes, each of other rows, as in _bulk."""
    asked = "".join(
        f"@%p1 {TENSOR} [%r11], [%rd3, {{0, {i * rows}}}], [%r10];\n" for i in range(copies)
    )
    start = f"add.u32 %r11, %r9, 1024; @%p1 {EXPECT}{copies * 128 * rows};"
    return rounds(f"{start}\n{asked}{WAIT}", target, box=(32, rows), **launch)


def _first_tensor(device: Device) -> float:
    """clk of the first tensor copy of a kernel, above a later one: its tensormap is fetched. The
    data is in the L2 by then.
    """
    warm = f"""@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], 1024;
    @%p1 {BULK} [%r11], [%rd2], 1024, [%r9]; mov.b32 %r5, 0;
    {WAIT.replace("[%r10]", "[%r9]")}"""
    setup = (
        f"add.u32 %r11, %r9, 1024; @%p1 mbarrier.init.shared::cta.b64 [%r9], 1; bar.sync 0; {warm}"
    )
    found = device.run(_tensor(device.target, 1, 8, setup=setup, cold=True))
    return found[0] - statistics.median(found[2:])


def _multicast(target: str) -> ProbeKernel:
    """A bulk copy of 1 KB by a cluster's first CTA to both, until it is there."""
    copy = f"@%p2 {BULK}.multicast::cluster [%r11], [%rd2], 1024, [%r10], %rs1;"
    body = f"add.u32 %r11, %r9, 1024; @%p1 {EXPECT}1024;\n{copy}\n{WAIT}"
    return rounds(body, target, "mov.b16 %rs1, 3;", after=RENDEZVOUS, ctas=2, cluster=2)


def _bytes_a_clk(device: Device, cold: bool) -> float:
    """Bytes a clk of all SMs, each with 128 KB asked for at any time: of lines of its own, again
    and again, or of others each time. In copies of 32 KB, since the loop takes some 290 clk a copy
    (H200, docs/results/h200-memory.json).
    """
    height, stages, loads, warm = 64, 4, 12, 4
    tile = 4 * WIDTH * height
    text = bandwidth_kernel(height, stages, loads, warm, device.sms, step=int(cold))
    kernel = ProbeKernel(
        text.replace(".target sm_100a", f".target {device.target}"),
        words=device.sms,
        data_bytes=device.sms * tile * (loads + stages if cold else 1),
        ctas=device.sms,
        smem=stages * tile + 1024,
        box=(WIDTH, height),
        cold=cold,
    )
    each = statistics.mean(device.run(kernel)) / (loads - 1 - warm)
    return device.sms * tile / each


def _mma(depth: int, group: int, m: int, n: int) -> Callable[[Device], float]:
    """clk of an MMA in a batch of `depth` fp16 MMAs from shared memory (with its commit and wait
    for depth 1).
    """

    def measure(device: Device) -> float:
        text = mma_kernel("BF16", "SS", group, m, n, depth)
        words = group * ITERATIONS
        kernel = ProbeKernel(text, words, ctas=group, cluster=group)
        cycles = device.run(kernel)[:ITERATIONS]
        return statistics.median(cycles[1:]) / depth

    return measure


def _tensor_memory_load(columns: int) -> Callable[[str], ProbeKernel]:
    """tcgen05.ld of `columns` columns, and the wait for it."""
    registers = ", ".join(f"%r{60 + i}" for i in range(columns))
    setup, finish = tensor_memory()
    load = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{registers}}}, [%r20];"
    return lambda target: rounds(
        f"{load}\ntcgen05.wait::ld.sync.aligned;", target, setup, finish=finish
    )


def _scale_copies(copies: int) -> Callable[[str], ProbeKernel]:
    """`copies` tcgen05.cp of scales from shared memory, a commit and the wait for it."""
    setup, finish = tensor_memory()
    # SMEM descriptor: start 1024 + dyn, leading and stride offsets of 128 bytes, no swizzle
    setup += """shr.u32 %r22, %r9, 4; add.u32 %r22, %r22, 64; cvt.u64.u32 %rd10, %r22;
    or.b64 %rd10, %rd10, 0x400800080000;"""
    each = "".join(
        "@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r20], %rd10;\n" for _ in range(copies)
    )
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];"
    return lambda target: rounds(f"{each}@%p1 {commit}\n{WAIT}", target, setup, finish=finish)


PROBES = (
    Probe("dependent loads from shared memory", "smem_load", "clk", _median(_shared_load)),
    Probe("barriers of a CTA", "bar_base", "clk", _median(_cta_barrier)),
    Probe("arrive and wait on an mbarrier", "mbarrier_wake", "clk", _median(_mbarrier)),
    Probe("barriers of a cluster of two", "cluster_sync", "clk", _median(_cluster_barrier)),
    Probe("fences of all memory", "fence_gpu", "clk", _median(_fence)),
    Probe("dependent loads from a peer CTA", "dsmem", "clk", _median(_distributed_load)),
    Probe("a small copy from the L2", "tma_l2", "clk", _median(lambda t: _bulk(t, 1))),
    Probe("bulk copies in a row", "bulk_issue", "clk", _median(lambda t: _bulk(t, 64))),
    Probe("tensor copies in a row", "tma_issue", "clk", _median(lambda t: _tensor(t, 24, 1))),
    Probe("rows of a large copy", "row128_clk", "clk", _median(lambda t: _tensor(t, 1, 256))),
    Probe("first use of a tensormap", "descriptor_fetch", "clk", _first_tensor),
    Probe("a copy to two CTAs", "multicast_extra", "clk", _median(_multicast)),
    Probe("a small copy from DRAM", "dram_extra_clk", "clk", _median(_cold)),
    Probe(
        "all SMs from the L2", "l2_bandwidth", "B/clk", lambda device: _bytes_a_clk(device, False)
    ),
    Probe(
        "all SMs from DRAM", "dram_bandwidth", "B/clk", lambda device: _bytes_a_clk(device, True)
    ),
    Probe("MMAs 128 x 64, a batch", "mma_a_ss", "clk", _mma(64, 1, 128, 64), True),
    Probe("an MMA 128 x 64", "lat_ss128", "clk", _mma(1, 1, 128, 64), True),
    Probe("an MMA of a pair, 256 x 64", "lat_ss_pair256", "clk", _mma(1, 2, 256, 64), True),
    Probe("one copy of scales", "cp_latency", "clk", _median(_scale_copies(1)), True),
    Probe("copies of scales", "cp_32x128b", "clk", _median(_scale_copies(32)), True),
    Probe("tcgen05.ld of a column", "tmem_ld", "clk", _median(_tensor_memory_load(1)), True),
    Probe("tcgen05.ld of 64", "tmem_ld_column", "clk", _median(_tensor_memory_load(64)), True),
    Probe("an empty call", "event_floor_us", "us", lambda device: device.empty_call_us(1)),
    Probe("empty calls in a row", "launch_gap_us", "us", lambda d: d.empty_call_us(EMPTY_CALLS)),
)
