"""Mbarriers have the names that their source gives them."""

from __future__ import annotations

import pytest

from b200.program.barrier_names import barrier_name
from b200.program.module import Loc

PYTHON = '''\
import cutlass.cute as cute


def setup(storage, full, stages):
    cute.arch.mbarrier_init(full + 1, 1)
    cute.arch.mbarrier_init(storage.empty.data_ptr() + 2, 1)
    cute.arch.mbarrier_init(storage.done.ptr, 1)
    ring = PipelineTmaUmma.create(
        num_stages=stages,
        barrier_storage=storage.ab_mbar.data_ptr(),
    )
    cute.arch.mbarrier_init_fence()
    init_barriers(full, stages)


@gluon.jit
def partition(ready, stages):
    for i in gl.static_range(stages):
        mbarrier.init(ready.index(i), count=1)


def init_barriers(pointer, count):
    cute.arch.mbarrier_init(pointer, count)


SOURCE = """
__device__ void init(uint64_t* bar) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(address(bar)));
}
__device__ void mbarrier_init(uint64_t* bar);
    mbarrier_init(&shared.full[i], 1);
    mbarrier_init(stage_of(mbar_a, stage), 1);
    ptx::mbarrier_init(static_cast<uint64_t*>(ready), 1);
    storage->accumulator[s].init(1);
    cluster_barrier_init(bars + 2 * s);
"""
'''


def at(path, line: int, *callers: int) -> Loc:
    outer = at(path, callers[0], *callers[1:]) if callers else None
    return Loc(str(path), line, outer)


@pytest.mark.parametrize(
    "text, callers, name",
    [
        ("full + 1", (), "full"),
        ("storage.empty", (), "empty"),
        ("storage.done", (), "done"),
        ("PipelineTmaUmma", (), "ab_mbar"),
        ("init_fence", (), ""),
        ("mbarrier.init(ready", (), "ready"),
        ("mbarrier_init(pointer", (), "pointer"),
        ("mbarrier_init(pointer", ("init_barriers(full",), "full"),
        ("asm volatile", (), ""),
        ("asm volatile", ("&shared.full",), "full"),
        ("mbarrier_init(uint64_t", (), ""),
        ("stage_of", (), "mbar_a"),
        ("static_cast", (), "ready"),
        ("accumulator", (), "accumulator"),
        ("bars + 2", (), "bars"),
        ("import", (), ""),
    ],
)
def test_the_name_of_a_barrier(tmp_path, text, callers, name):
    path = tmp_path / "kernel.py"
    path.write_text(PYTHON)
    lines = PYTHON.splitlines()
    where = [next(i for i, line in enumerate(lines, 1) if t in line) for t in (text, *callers)]
    assert barrier_name(at(path, *where)) == name


def test_source_that_is_not_at_hand():
    assert barrier_name(Loc("nowhere/kernel.py", 3)) == "" and barrier_name(None) == ""
