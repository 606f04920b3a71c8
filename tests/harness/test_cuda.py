"""The CUDA side of eval.py on whatever GPU there is, with stand-ins in plain torch.

Run with `pytest -m cuda tests/harness/test_cuda.py`. The times are those of the stand-in and say
nothing of submission.py.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

RIGHT = "result = ref_kernel(data)\nreturn result"
GEMM = "m: 128; n: 256; k: 256; l: 1; seed: 1111"
SMALL = {
    "gemv": "m: 128; k: 256; l: 1; seed: 1111",
    "gemm": GEMM,
    "dual": "m: 256; n: 512; k: 256; l: 1; seed: 1111",
    "group": "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111",
}
STATISTICS = ("runs", "mean", "std", "err", "best", "worst")


@pytest.fixture
def on_gpu(run_eval, stand_in):
    """on_gpu(mode, problem, body, *more, popcorn=False): a stand-in, on a small case."""

    def run(mode, problem, body, *more, **options):
        named = ["--problem", problem, "--case", SMALL[problem], "--device", "cuda"]
        return run_eval(mode, *named, "--submission", stand_in(body), *more, **options)

    return run


@pytest.mark.parametrize("problem", SMALL)
def test_right(on_gpu, problem):
    done = on_gpu("test", problem, RIGHT, "--json")
    assert done.status == 0, done.stderr
    (record,) = done.records
    assert record["status"] == "pass" and record["device"] == torch.cuda.get_device_name()
    assert "kind" not in record or record["kind"] is None


@pytest.mark.parametrize("problem", SMALL)
def test_measured(on_gpu, problem):
    done = on_gpu("benchmark", problem, RIGHT, "--json")
    assert done.status == 0, done.stderr
    (record,) = done.records
    assert record["kind"] == "measured" and record["device"] == torch.cuda.get_device_name()
    assert 0 < record["low_us"] <= record["time_us"] <= record["high_us"]


def test_the_protocol_of_a_benchmark(on_gpu):
    done = on_gpu("benchmark", "gemv", RIGHT, popcorn=True)
    assert done.status == 0, done.stderr
    said = dict(done.popcorn)
    assert said["benchmark-count"] == "1" and said["check"] == "pass"
    values = {name: float(said[f"benchmark.0.{name}"]) for name in STATISTICS}
    assert values["runs"] >= 3
    assert 0 < values["best"] <= values["mean"] <= values["worst"]


def test_gpu_time_between_the_events_is_measured(on_gpu):
    """Events bracket the call: a kernel that spins for 2 ms is measured as at least that."""
    cycles = 4_000_000  # more than 2 ms at any clock below 2 GHz
    done = on_gpu(
        "benchmark", "gemv", f"import torch\ntorch.cuda._sleep({cycles})\n{RIGHT}", "--json"
    )
    assert done.status == 0, done.stderr
    (record,) = done.records
    assert record["time_us"] > 1900


@pytest.mark.parametrize("mode", ["test", "benchmark", "leaderboard"])
def test_wrong(on_gpu, mode):
    done = on_gpu(mode, "gemm", "c.zero_()\nreturn c", popcorn=True)
    assert done.status == 112
    assert dict(done.popcorn)["check"] == "fail"


def test_a_kernel_that_is_wrong_only_when_timed_is_found_by_the_recheck(on_gpu):
    body = "import inspect\ntimed = any(frame.function == 'time' for frame in inspect.stack())\n"
    body += "return ref_kernel(data) * (2 if timed else 1)"
    done = on_gpu("leaderboard", "gemm", body, popcorn=True)
    assert done.status == 112
    assert dict(done.popcorn)["check"] == "fail"
    assert on_gpu("benchmark", "gemm", body).status == 0  # which does not recheck


def test_an_illegal_access_is_a_cuda_error(on_gpu):
    body = "import torch\nindex = torch.tensor([1 << 40], device='cuda')\ntorch.zeros(4, device='cuda')[index]\n"
    done = on_gpu("test", "gemm", body + "torch.cuda.synchronize()\nreturn c", popcorn=True)
    assert done.status == 110


def test_a_kernel_that_does_not_end_is_stopped(on_gpu):
    body = "import torch\nfor _ in range(100): torch.cuda._sleep(1 << 34)\ntorch.cuda.synchronize()\nreturn c"
    done = on_gpu("test", "gemm", body, "--timeout", "20", popcorn=True)
    assert done.status == 114


def test_an_exception_of_one_case_leaves_the_others(run_eval, stand_in, tmp_path):
    cases = tmp_path / "cases.txt"
    cases.write_text("\n".join(GEMM.replace("m: 128", f"m: {m}") for m in (128, 256, 384)))
    body = f"if m == 256: raise RuntimeError('not this one')\n{RIGHT}"
    arguments = ["--problem", "gemm", "--device", "cuda", "--json", "--submission", stand_in(body)]
    done = run_eval("test", str(cases), *arguments)
    assert done.status == 112
    assert [record["status"] for record in done.records] == ["pass", "error", "pass"]
    assert "not this one" in done.records[1]["message"]


def test_profile(on_gpu):
    done = on_gpu("profile", "gemm", RIGHT)
    assert done.status == 0, done.stderr
    assert "CUDA" in done.stdout and "ncu" in done.stdout


def test_wrong_device_is_said(on_gpu):
    done = on_gpu("test", "gemm", "return c.cpu()", "--json")
    assert done.status == 112
    assert "device" in done.records[0]["message"]
