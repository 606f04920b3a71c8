"""Every special register that says where a thread is, in a launch whose sizes all differ."""

from __future__ import annotations

import itertools
import operator

import torch

from tests.b200.ptx_support import HEADER, kernel, own_element, run

GRID, BLOCK, CLUSTER = (4, 3, 2), (3, 5, 7), (2, 3, 1)
WARPS = -(-BLOCK[0] * BLOCK[1] * BLOCK[2] // 32)
TRIPLES = (
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
)
SINGLE = ("cluster_ctarank", "cluster_nctarank", "laneid", "warpid")
REGISTERS = [f"{name}.{axis}" for name in TRIPLES for axis in "xyz"] + list(SINGLE)


def linear(index: tuple, sizes: tuple) -> int:
    """x runs fastest (CUDA programming guide, thread hierarchy)."""
    return index[0] + sizes[0] * (index[1] + sizes[1] * index[2])


def row_of_thread() -> str:
    """PTX that makes %r5 the number of the thread in the grid, from tid and ctaid."""
    text = "mov.u32 %r5, 0;"
    for name, sizes in (("ctaid", GRID), ("tid", BLOCK)):
        for axis in (2, 1, 0):
            text += f"mov.u32 %r1, %{name}.{'xyz'[axis]};"
            text += f"mad.lo.u32 %r5, %r5, {sizes[axis]}, %r1;"
    return text


def body() -> str:
    stores = "".join(
        f"mov.u32 %r1, %{name}; st.global.u32 [%rd1+{4 * i}], %r1;\n"
        for i, name in enumerate(REGISTERS)
    )
    return f"""{row_of_thread()}
    mul.wide.u32 %rd2, %r5, {4 * len(REGISTERS)}; add.u64 %rd1, %rd1, %rd2;
    {stores}"""


def expected() -> list[list[int]]:
    """A row a thread, in the order of its number, by the definitions in PTX ISA 10."""
    rows = []
    for z, y, x, c, b, a in itertools.product(*(range(n) for n in (*GRID[::-1], *BLOCK[::-1]))):
        cta, thread = (x, y, z), (a, b, c)
        cluster = tuple(i // n for i, n in zip(cta, CLUSTER))
        inside = tuple(i % n for i, n in zip(cta, CLUSTER))
        clusters = tuple(n // m for n, m in zip(GRID, CLUSTER))
        number = linear(thread, BLOCK)
        rows.append(
            [*thread, *BLOCK, *cta, *GRID, *cluster, *clusters, *inside, *CLUSTER]
            + [linear(inside, CLUSTER), CLUSTER[0] * CLUSTER[1] * CLUSTER[2]]
            + [number % 32, number // 32]
        )
    return rows


def test_where_a_thread_is():
    threads = GRID[0] * GRID[1] * GRID[2] * BLOCK[0] * BLOCK[1] * BLOCK[2]
    out = torch.full((threads, len(REGISTERS)), -1, dtype=torch.int32)
    text = f"""{HEADER}.visible .entry k(.param .u64 out) .reqntid {BLOCK[0]}, {BLOCK[1]}, {BLOCK[2]}
    {{ .reg .b32 %r<9>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [out]; {body()} ret; }}"""
    run(text, out, grid=GRID, block=BLOCK, cluster=CLUSTER)
    assert out.tolist() == expected()
    assert WARPS == 1 + max(row[-1] for row in out.tolist())


ONE_SIZE = {  # special registers that all threads share (PTX ISA 10; docs/reference/semantics.md)
    "nsmid": 148,
    "nwarpid": 64,
    "gridid": 1,
    "dynamic_smem_size": 4096 + 1024,
    "total_smem_size": 4096 + 1024 + 1024,
    "aggr_smem_size": 4096 + 1024 + 1024,
    "current_graph_exec": 0,
    "reserved_smem_offset_begin": 0,
    "reserved_smem_offset_cap": 1024,
    "is_explicit_cluster": 0,
    **{f"envreg{i}": 0 for i in range(32)},
}


def test_what_all_threads_share():
    out = torch.full((len(ONE_SIZE),), -1, dtype=torch.int32)
    stores = "".join(
        f"mov.b32 %r1, %{name}; st.global.b32 [%rd1+{4 * i}], %r1;\n"
        for i, name in enumerate(ONE_SIZE)
    )
    text = kernel(f"ld.param.u64 %rd1, [out]; {stores}", [".u64 out"], ".shared .b8 own[1024];")
    run(text, out, smem=4096)
    assert dict(zip(ONE_SIZE, out.tolist())) == ONE_SIZE


def test_masks_of_lanes():
    """%lanemask_*: bits of the lanes equal to, below, above one's own (PTX ISA 10)."""
    names = ("eq", "lt", "le", "gt", "ge")
    out = torch.zeros((32, len(names)), dtype=torch.int32)
    stores = "".join(
        f"mov.u32 %r5, %lanemask_{name}; st.global.u32 [%rd3+{4 * i}], %r5;\n"
        for i, name in enumerate(names)
    )
    run(kernel(own_element(4 * len(names)) + stores, [".u64 out"]), out)
    compare = (operator.eq, operator.lt, operator.le, operator.gt, operator.ge)
    for lane, row in enumerate(out.tolist()):
        for found, holds in zip(row, compare):
            assert found % (1 << 32) == sum(1 << i for i in range(32) if holds(i, lane))
