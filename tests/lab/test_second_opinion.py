"""SentryWard on the kernel's PTX (lab/evidence/verify.py): a verifier that others wrote."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys

import pytest

from b200.chip.copies.tensormap import TensorMap
from b200.program.parse import parse
from lab.evidence.verify import ASKED, PLAIN, Asked, Recorded, explained, wrong
from tests import ROOT

HAVE = importlib.util.find_spec("sentryward") is not None
needs_it = pytest.mark.skipif(not HAVE, reason='sentryward: pip install ".[verify]"')

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(
    .param .align 64 .b8 map[128],
    .param .u64 out,
    .param .u64 count,
    .param .align 4 .b8 flags[8]
) {
    .loc 1 2 3
    redux.sync.or.b32 %r1, %r2, -1;
    tcgen05.mma.cta_group::1.kind::f16.collector::a::discard [%r1], %d1, %d2, %r2, %p1;
    ret;
}
"""


def recorded() -> Recorded:
    codes = TensorMap(0x4000, 11, (512, 64, 1), (256, 256 * 64), (256, 32, 1), swizzle=3)
    params = codes.encode() + struct.pack("<QQII", 0x8000, 0x9000, 7, 8)
    declared = ".version 8.8 .target sm_100a .address_size 64 .visible .entry k("
    head = TEXT[TEXT.index("(") + 1 : TEXT.index(") {")]
    kernel = parse(f"{declared}{head}) {{ ret; }}").kernels["k"]
    objects = {0x4000: "codes", 0x8000: "c"}
    return Recorded(TEXT, kernel, (2, 1, 1), (64, 1, 1), (2, 1, 1), 1024, params, objects)


def test_the_edits_of_the_text():
    ptx = recorded().ptx
    assert ".param .u64 .ptr .global .align 16 out" in ptx
    assert ".param .u64 count" in ptx  # 0x9000 is no tensor's address
    assert "mov.b32 %r1, %r2;" in ptx and "redux" not in ptx
    assert "kind::f16 [%r1]" in ptx and ".loc" not in ptx
    assert len(ptx.splitlines()) == len(TEXT.splitlines())


def test_the_input_file():
    given = recorded().input
    assert given["launch"] == {
        "grid_dim": [2, 1, 1],
        "block_dim": [64, 1, 1],
        "cluster_dim": [2, 1, 1],
        "dynamic_shared_bytes": 1024,
    }
    assert given["declarations"] == [
        {"parameter": 1, "offset": 0, "type": "pointer", "space": "global", "object": "c"},
        {"parameter": 0, "offset": 0, "type": "tensor_map", "object": "codes"},
    ]
    assert given["arguments"] == [
        {"parameter": 2, "offset": 0, "type": "u64", "value": 0x9000},
        {"parameter": 3, "offset": 0, "type": "u32", "value": 7},
        {"parameter": 3, "offset": 4, "type": "u32", "value": 8},
    ]
    (codes,) = given["tma_descriptors"]
    assert codes["element_type"] == "16u4_align8b" and codes["swizzle"] == "128B"
    assert codes["global_shape"] == [512, 64, 1] and codes["box_shape"] == [256, 32, 1]
    assert codes["global_strides_bytes"] == [256, 256 * 64]


def race(first: int, second: int, actors=(160, 160), space="tensor") -> dict:
    ends = [
        {"actor": actor, "location": {"line": line}} for actor, line in zip(actors, (first, second))
    ]
    return {"first": ends[0], "second": ends[1], "region": {"address_space": space}}


PTX = "tcgen05.cp.cta_group::1.32x128b.warpx4 a;\ntcgen05.mma.cta_group::1 b;\nst.shared.b32 c;"


@pytest.mark.parametrize(
    "found, known",
    [
        (race(1, 2), True),
        (race(1, 1), True),
        (race(2, 2), False),
        (race(1, 2, actors=(160, 352)), False),
        (race(1, 2, space="shared"), False),
        (race(1, 3), False),
    ],
)
def test_which_races_are_explained(found, known):
    lines = PTX.splitlines()
    opcodes = [lines[found[end]["location"]["line"] - 1].split()[0] for end in ("first", "second")]
    assert explained(found, *opcodes) == known
    answer = {
        "checks": {"synchronization": "passed", "memory": "failed"},
        "races": [found],
        "race_samples_truncated": False,
    }
    assert (wrong(answer, PTX) == []) == known


@pytest.mark.parametrize(
    "checks, more, said",
    [
        ({"synchronization": "failed", "memory": "not_run"}, {}, "synchronisation failed: why"),
        ({"synchronization": "incomplete", "memory": "not_run"}, {}, "synchronisation incomplete"),
        ({"synchronization": "passed", "memory": "incomplete"}, {}, "not all is told"),
        (
            {"synchronization": "passed", "memory": "failed"},
            {"races": [race(1, 2)], "race_samples_truncated": True},
            "not all is told",
        ),
    ],
)
def test_what_is_not_proved_is_said(checks, more, said):
    (line,) = wrong({"checks": checks, "diagnostics": [{"message": "why"}], **more}, PTX)
    assert said in line


def test_a_configuration_has_the_fields_of_the_submission_only():
    asked = Asked("gemm", "", {"cluster_n": 2})
    picked = {"cluster_n": 4, "split_k": 3, "of_another": 5}
    assert asked.config(picked) == {"cluster_n": 2, "split_k": 1, "of_another": 5}
    assert all(set(asked.fields) <= set(PLAIN) for asked in ASKED.values())


def run(code_or_module: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *code_or_module]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)


@pytest.mark.slow
@needs_it
def test_every_mechanism_is_synchronised_and_races_are_explained():
    done = run(["-m", "lab", "verify"])
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("race_free") == len(ASKED) - 1  # shared weights: explained


PLANTED = """
import dataclasses, tempfile
from pathlib import Path
import b200
from hopper.pack import Recorder
from harness.evaluator.case import loading
from lab.evidence import verify
from lab.evidence.verify import ASKED
from harness.qualify.submission import Submission
from harness.evaluator.case.gpu_data import on_gpu

recorder = Recorder()
b200.install(check=False, gpu=recorder)
submission = Submission.of(on_gpu(loading.load_kernel(Path("submission.py").resolve())))
right = verify.record(submission, recorder, ASKED["one CTA"])
loads = right.text.index("tcgen05.ld.")
wait = right.text.rindex("mbarrier.try_wait", 0, loads)
end = right.text.index(";", wait)
predicate = right.text[wait:end].split()[1].rstrip(",")
planted = f"{right.text[:wait]}setp.eq.u32 {predicate}, 0, 0{right.text[end:]}"
with tempfile.TemporaryDirectory() as folder:
    broken = dataclasses.replace(right, text=planted)
    print(*verify.wrong(verify.ask(broken, Path(folder), 300), broken.ptx), sep="\\n")
"""


@pytest.mark.slow
@needs_it
def test_an_epilogue_that_does_not_wait_is_found():
    done = run(["-c", PLANTED])
    said = "tcgen05.cp must complete before the allocation is deallocated"
    assert said in done.stdout, done.stdout + done.stderr[-2000:]


def test_without_it_one_line_says_so(fork_server):
    if HAVE:
        pytest.skip("it is installed")
    done = fork_server.run("-m", "lab", "verify")
    expected = 'verify: sentryward is not installed (pip install ".[verify]")\n'
    assert (done.returncode, done.stderr) == (2, expected)
