"""Kinds of kernels, told from launches, and the ranges that published times make for them."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from b200.chip.gpu import Gpu
from b200.clock import Options, call_time, kind, profile, timed_machine
from b200.clock import spread as spreads
from b200.clock.spread import Spread, spread
from harness.evaluator.ladder import errors as ladder
from tests import ROOT
from tests.b200.ptx_support import kernel, run

TILE = 4096  # bytes that a k-tile loads
K_TILES = 4
STORE = "st.global.f32 [%rd2], %r21;"
WAIT = """
{{ .reg .pred P1; LAB: mbarrier.try_wait.parity.shared.b64 P1, [%r9+{at}], {parity};
@P1 bra DONE; bra LAB; DONE: }}
"""


def pipeline(stages: int, tiles: int = 1, group: int = 1, result: str = STORE) -> str:
    """PTX of a warp that multiplies `tiles` tiles of K_TILES k-tiles through a ring of stages, and
    does `result` with an element %r21 of each; in a pair the even CTA does all."""
    full, empty = [8 + 8 * s for s in range(stages)], [64 + 8 * s for s in range(stages)]
    mma = f"@%p3 tcgen05.mma.cta_group::{group}.kind::f16 [%r20], %rd10, %rd10, %r40, %p4;"
    commit = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64"

    def load(i: int) -> str:
        s = i % stages
        return f"""
        @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r9+{full[s]}], {TILE};
        @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r10], [%rd3], {TILE}, [%r11];
        """.replace("[%r10]", f"[%r9+{1024 + s * TILE}]").replace("[%r11]", f"[%r9+{full[s]}]")

    steps, count = [load(i) for i in range(min(stages, tiles * K_TILES))], tiles * K_TILES
    for i in range(count):
        s, parity = i % stages, i // stages % 2
        steps += [WAIT.format(at=full[s], parity=parity), mma]
        steps += [f"@%p3 {commit} [%r9+{empty[s]}];", WAIT.format(at=empty[s], parity=parity)]
        steps += [load(i + stages)] if i + stages < count else []
        if i % K_TILES == K_TILES - 1:
            steps.append("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20];")
            steps += ["tcgen05.wait::ld.sync.aligned;", result]
    inits = "".join(f"@%p1 mbarrier.init.shared.b64 [%r9+{at}], 1;" for at in full + empty)
    sync = "barrier.cluster.arrive; barrier.cluster.wait;" if group == 2 else "bar.sync 0;"
    body = f"""
    ld.param.u64 %rd2, [out];
    ld.param.u64 %rd3, [data];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.b32 %r9, dyn;
    setp.eq.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r2, 0;
    setp.eq.u32 %p4, %r1, %r1;
    {inits}
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r9], 128;
    fence.mbarrier_init.release.cluster;
    {sync}
    ld.shared.u32 %r20, [%r9];
    mov.u32 %r40, {1 << 4 | 64 >> 3 << 17 | 128 * group >> 4 << 24};
    add.u32 %r41, %r9, 1024;
    shr.u32 %r41, %r41, 4;
    cvt.u64.u32 %rd10, %r41;
    or.b64 %rd10, %rd10, {1 << 46 | 16 << 32 | 8 << 16};
    elect.sync _|%p3, -1;
    @%p2 bra END;
    {"".join(steps)}
    END:
    {sync}
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r20, 128;
    """
    return kernel(body, [".u64 out", ".u64 data"])


def launched(text: str, ctas: int = 1, group: int = 1, smem: int = 65536, **options):
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory, Options(arithmetic=False, **options))
    out, data = torch.zeros(64), torch.zeros(TILE, dtype=torch.uint8)
    shapes = {"grid": (ctas * group, 1, 1), "cluster": (group, 1, 1)}
    return run(text, out, data, **shapes, smem=smem, gpu=gpu)


STORED = (  # in shared memory of another CTA
    "mapa.shared::cluster.u32 %r50, %r9, 0; st.shared::cluster.f32 [%r50], 0f3F800000;"
)
SENT = (
    "mapa.shared::cluster.u32 %r50, %r9, 0; st.async.shared::cluster.mbarrier::complete_tx::bytes"
    ".b32 [%r50+2048], %r21, [%r50+8];"
)


@pytest.mark.parametrize(
    "expected, text, launch",
    [
        ("CUDA cores", kernel("ld.param.u64 %rd1, [out];", [".u64 out", ".u64 data"]), {}),
        ("one stage", pipeline(1), {}),
        ("one stage", pipeline(1, result="red.global.add.f32 [%rd2], %r21;"), {}),
        ("single wave", pipeline(2), {"ctas": 3}),
        ("single wave", pipeline(4, result="red.global.add.u32 [%rd2], %r21;"), {}),
        ("split K", pipeline(2, result="red.global.add.f32 [%rd2], %r21;"), {}),
        ("split K", pipeline(2, tiles=2, result="atom.global.add.f32 %r22, [%rd2], %r21;"), {}),
        ("split K", pipeline(2, result=SENT), {}),
        ("split K", pipeline(2, result=STORED), {}),
        ("persistent", pipeline(2, tiles=2), {}),
        ("single wave", pipeline(2, tiles=2, result=""), {}),  # two products of one tile
        ("persistent", pipeline(4, tiles=3, group=2), {"group": 2}),
        ("CTA pairs", pipeline(3, group=2), {"group": 2, "ctas": 2}),
        ("several waves", pipeline(2), {"ctas": 149, "smem": 200_000}),
    ],
)
def test_the_kind_of_a_launch(expected, text, launch):
    record = launched(text, **launch).time
    assert kind.of(record) == expected
    assert expected in kind.KINDS and expected in profile.text(record)


ERRORS = {"CTA pairs": [-0.2, 0.0, 0.25, 0.6], "split K": [0.1, 0.3, 3.0]}


def test_a_range_is_what_published_times_were_of_modelled_ones():
    """A time that was modelled a quarter too long was four fifths of it."""
    found = spread("CTA pairs", ERRORS)
    assert (found.low, found.high) == pytest.approx((1 / 1.6, 1 / 0.8))
    assert found.text == "errors on 4 published times of kind CTA pairs"
    late = spread("CTA pairs", {"CTA pairs": [0.25, 0.6, 0.6, 1.0]})
    assert (late.low, late.high) == (0.5, 1.0)  # the modelled time itself is in its range


@pytest.mark.parametrize("name, count", [("split K", "3"), ("CUDA cores", "none")])
def test_a_kind_with_too_few_points_takes_those_of_all(name, count):
    found = spread(name, ERRORS)
    assert (found.points, found.low, found.high) == (7, 0.25, 1.25)
    assert found.text == f"errors on 7 published times of all kinds ({name}: {count})"


def test_the_range_of_a_call_is_that_of_its_longest_launch(monkeypatch):
    monkeypatch.setattr(call_time, "spread", lambda name, **_: Spread(0.5, 3.0, 9, f"a {name}"))
    short, long = launched(pipeline(2)), launched(pipeline(3, tiles=6))
    found = call_time.reported([short, long], 50)
    assert found.kernel_kind == "persistent" and found.range_from.endswith("of a persistent")
    assert (found.low_us, found.high_us) == (0.5 * found.time_us, 3.0 * found.time_us)
    assert long.time.low_us == long.time.time_us == long.time.high_us


def test_a_sweep_of_the_constants_is_an_option():
    launch = launched(pipeline(2), sweep_constants=True)
    found = call_time.reported([launch], 50)
    assert found.low_us < found.time_us < found.high_us and found.range_from == call_time.SWEPT
    assert launch.time.low_us < launch.time.time_us < launch.time.high_us


def test_the_packaged_errors_are_those_of_the_ladder():
    """Of its odd half, and of that of others.json; every kind is one that launches have."""
    lines = (ROOT / "docs" / "results" / "ladder.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    odd = [p for p in points if p["parity"] == "odd" and p["status"] == "pass"]
    for k in json.loads((ROOT / "docs" / "results" / "others.json").read_text())["kernels"]:
        name = f"{k['kernel']}/{k['shape']}/{k['tactic']}"
        if hashlib.sha256(name.encode()).digest()[0] % 2:
            odd.append({**k, "time_us": k["modelled_us"]})
    errors = spreads.published_errors()
    assert set(errors) <= set(kind.KINDS)
    expected = sorted((p["kind"], p["time_us"] / p["published_us"] - 1) for p in odd)
    found = sorted((name, error) for name in errors for error in errors[name])
    assert [n for n, _ in found] == [n for n, _ in expected]
    assert [e for _, e in found] == pytest.approx([e for _, e in expected], abs=6e-5)
    written = json.loads(spreads.FILE.read_text())
    assert written["grade"] == "published" and "aee9cda" in written["source"]


def test_points_of_the_other_half_and_failed_ones_make_no_range():
    point = {"parity": "odd", "kind": "split K", "published_us": 10.0, "time_us": 9.0}
    point["made_by"] = {"clock": "c"}
    points = [point, {**point, "parity": "even"}, {**point, "time_us": None}]
    assert ladder.published_errors(points)["errors"] == {"split K": [-0.1]}
    other = {"kind": "split K", "published_us": 10.0, "time_us": 12.0}
    other["made_by"] = {"clock": "d"}
    both = ladder.published_errors(points, [other])
    assert both["errors"] == {"split K": [-0.1, 0.2]} and both["clocks"] == ["c", "d"]
