"""Each mechanism of the kernel, on a small case, over all orders of its warps."""

from __future__ import annotations

import pytest

import b200
from b200.explore import FREE
from lab.kernel_cases import dual, gemm, group, inputs
from submission import Config, Problem
from tests.submission.submission_support import run

MECHANISMS: dict[str, tuple[Problem, Config]] = {
    "one CTA": (gemm(128, 64, 1024), Config(tile_n=64)),
    "pair": (gemm(256, 64, 1024), Config(tile_n=64, cta_group=2)),
    "multicast": (gemm(128, 128, 1024), Config(tile_n=64, cluster_n=2)),
    "K split": (gemm(128, 64, 1024), Config(tile_n=64, split_k=2)),
    "dual": (dual(128, 64, 1024), Config(tile_n=64)),
    "group": (group((64, 128, 512), (48, 256, 256)), Config(tile_n=64)),
    "persistent": (gemm(128 * 6, 64, 512), Config(tile_n=64, persistent=True)),  # of four SMs
}


@pytest.mark.parametrize("problem, config", MECHANISMS.values(), ids=MECHANISMS)
def test_no_order_hangs(problem, config, request):
    if config.persistent:
        request.getfixturevalue("four_sms")
    run(inputs(problem, 1), config, "all")
    found = b200.install(schedule="all").launches[-1].orders
    assert found.kind == FREE, str(found)
    assert found.steps > 80 and found.states > found.steps
