"""The board's way: several shapes in one process, outputs that are read later, results that come
from the launches.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from b200.chip.launch import Shape
from harness.evaluator.case import checks, launches
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.case.timing import WrongResult
from harness.evaluator.cases import make_case
from harness.evaluator.together import further
from reference import generate_input, ref_kernel
from task import PROBLEMS

GEMM = PROBLEMS["nvfp4_gemm"]


def inputs(seed: int = 1, k: int = 256):
    return generate_input(GEMM.name, m=8, n=16, k=k, l=1, seed=seed)


def case_of(m: int, n: int, k: int):
    return make_case(GEMM, {"m": m, "n": n, "k": k, "l": 1, "seed": 1})


def chosen(shapes: list[tuple], seconds: list[float], device: str = "emulator", good: bool = True):
    """The shapes (m, n, k) that are called in one process, of cases that took so long."""
    cases = [case_of(*shape) for shape in shapes]
    jobs = [Job("test", device, GEMM.name, c.args, "", "s.py", 60.0) for c in cases]
    status = "pass" if good else "fail"
    outcomes = [Outcome(status, seconds=s) for s in seconds]
    return [
        [(a["m"], a["n"], a["k"]) for a in job.together]
        for _, job in further(jobs, cases, outcomes)
    ]


def test_two_shapes_that_differ_in_one_size_are_called_in_one_process():
    shapes = [(128, 128, 256), (256, 512, 1024), (128, 128, 512), (64, 64, 64)]
    assert chosen(shapes, [20.0, 1.0, 25.0, 2.0]) == [
        [(128, 128, 256), (256, 512, 1024), (128, 128, 512), (64, 64, 64)]
    ]
    # 40 and 55 s are too much together: the cheapest that fit
    assert chosen(shapes, [40.0, 50.0, 55.0, 2.0]) == [[(128, 128, 256), (64, 64, 64)]]
    assert chosen(shapes, [400.0] * 4, device="cuda") == [shapes]


def test_one_shape_alone_and_cases_that_fail_are_not_called_again():
    assert chosen([(128, 128, 256)] * 2, [1.0, 1.0]) == []
    assert chosen([(128, 128, 256), (128, 128, 512)], [1.0, 1.0], good=False) == []


def test_a_key_that_lacks_k_is_found():
    compiled: dict[tuple, int] = {}

    def kernel(data, complete: bool):
        key = (8, 16, data[0].shape[1]) if complete else (8, 16)
        k = compiled.setdefault(key, data[0].shape[1])
        return ref_kernel(data) * (k == data[0].shape[1])

    shapes = [("k: 256", inputs()), ("k: 512", inputs(k=512)), ("k: 256", inputs())]
    checks.in_one_process(lambda data: kernel(data, True), shapes, lambda: None)
    compiled.clear()
    with pytest.raises(
        WrongResult, match="call 2 in one process, on k: 512, after calls for other"
    ):
        checks.in_one_process(lambda data: kernel(data, False), shapes, lambda: None)


@pytest.mark.parametrize("problem", ["nvfp4_gemm", "nvfp4_gemv"])
def test_leaderboard_sees_an_output_that_calls_share(problem):
    shared = torch.empty_like(inputs()[-1])

    def kernel(data):
        return shared.copy_(ref_kernel(data))  # pyright: ignore[reportArgumentType]  one group

    assert checks.recheck(problem, ref_kernel, inputs, 1) == ""
    with pytest.raises(WrongResult, match="the second call changed what the first had returned"):
        checks.recheck(problem, kernel, inputs, 1)


def test_leaderboard_says_that_inputs_are_changed():
    def kernel(data):
        result = ref_kernel(data)
        data[0].view(torch.uint8).zero_()
        return result

    assert "changed its inputs (a)" in checks.recheck("nvfp4_gemm", kernel, inputs, 1)


ONE = Shape((1, 1, 1), (1, 1, 1), (1, 1, 1), 0)


class FakeGpu:
    """Launches do what they are given to do."""

    def __init__(self):
        self.launches: list = []

    def execute(self, program, kernel, shape, params):
        program()
        return SimpleNamespace()

    def launch(self, work):
        self.launches.append(self.execute(work, SimpleNamespace(name="k"), ONE, b""))


def test_a_result_that_comes_from_no_launch_is_named():
    gpu, data = FakeGpu(), inputs()

    def honest(data):
        gpu.launch(lambda: data[-1].copy_(ref_kernel(data)))
        return data[-1]

    def pretends(data):
        gpu.launch(lambda: None)
        return ref_kernel(data)

    def reads_what_is_not_there(data):
        scale = torch.zeros(1)
        gpu.launch(lambda: scale.fill_(1))
        if not scale.item():
            raise ValueError("the kernel has not run")
        return ref_kernel(data)

    assert launches.without_launches(honest, data, gpu) == ""
    assert launches.without_launches(reads_what_is_not_there, data, gpu) == ""
    said = launches.without_launches(pretends, data, gpu)
    assert said.startswith("note: the result is right although none of the launches")
    assert gpu.launches == [] and honest(data) is data[-1]
