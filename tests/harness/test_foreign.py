"""What is said of submissions that are not built as this project's is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evaluator import made_by
from lab.tables import picture
from tests import ROOT

ROWS_GEMM = ROOT / "docs" / "examples" / "gemm_mended.py"
CASE = "m: 128; n: 256; k: 256; l: 1"
SMALL = ("--case", "m: 8; n: 40; k: 64; l: 1")  # where the host computes c


BUGS = {  # name -> what is written in the place of what
    "": {},
    "half_stored": dict(picture.HALF),
    "column_major": {"stride=(n, 1, m * n)": "stride=(1, m, m * n)"},
    "no_empty_wait": {"cute.arch.mbarrier_wait(empty + s, phase ^ 1)": "pass"},
}


def with_bug(path: Path, bug: str) -> Path:
    text = ROWS_GEMM.read_text()
    for right, wrong in BUGS[bug].items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    target = path / f"{bug or 'right'}.py"
    target.write_text(text)
    return target


@pytest.fixture
def evaluate(fork_server) -> Callable[..., tuple[int, dict]]:
    """evaluate(mode, submission, *options): (exit status, JSON record) of eval.py on one case in
    the emulator.
    """

    def run(mode: str, submission: Path, *options: str) -> tuple[int, dict]:
        command = [str(ROOT / "eval.py"), mode, "gemm", "--json"]
        command += ["--device", "emulator", "--submission", str(submission), *options]
        command += [] if "--case" in options else ["--case", CASE]
        done = fork_server.run(*command)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    "bug, words",
    [
        (
            "half_stored",
            "all of them were never stored by any launch (rows all 128; columns 64-127",
        ),
        ("column_major", "c is stored column after column (leading dimension 128)"),
    ],
)
def test_diff_knows_the_kernel_at_hand(tmp_path, evaluate, bug, words):
    submission = with_bug(tmp_path, bug)
    status, record = evaluate("diff", submission)
    assert status == 112 and record["status"] == "fail"
    assert words in record["report"], record["report"]
    if bug == "half_stored":
        assert (
            "a CTA has 128 rows x 128 columns of c at a time, MMAs of 128 x 128"
            in (record["report"])
        )
        assert "rows in a tile (M of the MMA)" in record["report"]


def test_what_c_held_before_the_call_is_known(stand_in, evaluate):
    half = stand_in("launch(); c[:, : c.shape[1] // 2] = ref_kernel(data)[:, :20]; return c")
    said = evaluate("test", Path(half), *SMALL)[1]["message"]
    held = re.search(r"(\d+) of 320 elements hold what c held before the call", said)
    assert held and int(held[1]) in range(160, 164)  # some by chance


def test_diff_of_a_right_kernel(stand_in, evaluate):
    status, record = evaluate("diff", Path(stand_in("launch(); return ref_kernel(data)")), *SMALL)
    assert status == 0 and record["status"] == "pass"


# --- times are of right kernels ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["benchmark", "profile"])
def test_a_wrong_kernel_is_not_passed_by_the_clock(stand_in, evaluate, mode):
    timed = "b200._runtime.gpu.launch(PTX, None, (1, 1, 1), (32, 1, 1))"
    wrong = Path(stand_in(f"{timed}; r = ref_kernel(data); r[3, 5] += 9; return r"))
    status, record = evaluate(mode, wrong, *SMALL)
    assert (status, record["status"]) == (112, "fail") and "elements differ" in record["message"]
    status, record = evaluate(mode, wrong, *SMALL, "--no-check")
    assert (status, record["status"]) == (0, "timed") and record["time_us"] > 0
    assert "not checked" in record["message"]


def test_a_right_kernel_has_the_same_time_with_and_without_its_results(tmp_path, evaluate):
    right = with_bug(tmp_path, "")
    status, checked = evaluate("benchmark", right)
    assert (status, checked["status"]) == (0, "pass")
    timed = evaluate("benchmark", right, "--no-check")[1]
    assert timed["time_us"] == checked["time_us"]
    assert timed["made_by"] == made_by.modelled(right) and timed["calls"] == 50
    parts = dict(timed["parts"])
    assert parts["kernel"] == timed["kernel_us"] < timed["time_us"]
    assert sum(parts.values()) == pytest.approx(timed["time_us"])


def test_profile_knows_the_roles_the_stages_and_the_stores_of_the_kernel_at_hand(
    tmp_path, evaluate
):
    case = ("--case", "m: 128; n: 256; k: 1024; l: 1")
    status, record = evaluate("profile", with_bug(tmp_path, ""), *case, "--no-check")
    assert status == 0
    text = record["report"]
    assert record["kernel_kind"] == "single wave" and "one stage" not in text
    for role in ("load, epilogue", "MMA, epilogue"):
        assert f"\n  {role} " in text, text
    # Each thread stores its row of c, 16 bytes at a time: half a sector.
    assert "st to global memory: 0.066 MB in 0.131 MB of sectors" in text
    assert "advice: the stores are uncoalesced, 2.0 times their bytes" in text
    assert "right.py:" in text.split("advice:")[1].splitlines()[0]
    assert f"{record['time_us']:.2f} us is each of 50 calls between two events: kernel" in text
    assert "launch gap" in text


def test_barriers_have_the_names_of_the_source(tmp_path, evaluate):
    case = ("--case", "m: 128; n: 128; k: 1024; l: 1")
    status, record = evaluate("test", with_bug(tmp_path, "no_empty_wait"), *case)
    assert status == 112
    assert "mbarrier full[0] (0 of 5 in a row, offset 0x400)" in record["message"]
    assert record["message"].count("deadlock:") == 1 and "TVLayout" not in record["message"]


SIDE_QUEUE = """
    import torch
    from cuda.bindings.driver import CUstream
    side = torch.cuda.Stream()
    _compiled[m, n, k, l](*pointers, CUstream(side.cuda_stream))
    {after}
    return c
"""


@pytest.mark.parametrize("mode, waits", [("test", (False,)), ("leaderboard", (False, True))])
def test_work_on_a_side_queue_that_nobody_waits_for_is_an_error(tmp_path, evaluate, mode, waits):
    pytest.importorskip("cuda.bindings.driver")
    text = ROWS_GEMM.read_text()
    call = "    _compiled[m, n, k, l](*pointers)\n    return c\n"
    assert call in text
    text = text.replace(
        "l: cutlass.Constexpr,\n):", "l: cutlass.Constexpr,\n    queue: cuda.CUstream,\n):"
    )
    text = text.replace("block=(THREADS, 1, 1)\n", "block=(THREADS, 1, 1), stream=queue\n")
    text = text.replace("cute.compile(gemm, *pointers, m, n, k, l)", COMPILE)
    text = "import cuda.bindings.driver as cuda\n" + text
    for right in waits:
        after = "torch.cuda.current_stream().wait_stream(side)" if right else ""
        path = tmp_path / "side.py"
        path.write_text(text.replace(call, SIDE_QUEUE.format(after=after)))
        status, record = evaluate(mode, path, "--case", "m: 128; n: 128; k: 256; l: 1")
        if right:
            assert record["status"] == "pass", record["message"]
            # A board refuses the letters of `current_stream`, as the last step of leaderboard says.
            assert status == 112
        else:
            assert (status, record["status"]) == (112, "fail")
            assert "on another queue that nobody has waited for" in record["message"]


COMPILE = "cute.compile(gemm, *pointers, m, n, k, l, cuda.CUstream(0))"
