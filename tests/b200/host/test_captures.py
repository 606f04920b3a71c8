"""What goes into a CUDA graph: launches on the queue under capture, and on those that follow it."""

from dataclasses import dataclass, field
from typing import Any, cast

from b200.chip.gpu import Gpu
from b200.chip.launch import Shape
from b200.host.captures import Capture, KernelWork
from b200.host.runtime import Runtime
from b200.program.module import Program

OWN, OTHER = 0x1010, 0x1020


@dataclass
class Done:
    kernel: str
    findings: list = field(default_factory=list)


class FakeGpu:
    def __init__(self):
        self.launches: list[Done] = []

    def launch(self, _program, kernel: str, *_) -> Done:
        self.launches.append(Done(kernel))
        return self.launches[-1]


def _capturing() -> tuple[Runtime, FakeGpu, Capture]:
    gpu = FakeGpu()
    runtime = Runtime(cast(Gpu, gpu))
    capture = runtime.recording = Capture(OWN)
    return runtime, gpu, capture


def _work(name: str) -> KernelWork:
    return KernelWork(cast(Program, None), name, Shape((1, 1, 1), (1, 1, 1), (1, 1, 1), 0), b"")


def _names(launches: list[Any]) -> list[str]:
    return [work.kernel for work in launches]


def test_the_queue_under_capture_is_recorded():
    runtime, gpu, capture = _capturing()
    runtime.launch(_work("a"), OWN)
    runtime.launch(_work("b"), None)  # raw CUDA, which does not say
    assert _names(capture.launches) == ["a", "b"] and not gpu.launches


def test_a_launch_on_the_default_queue_runs_and_is_told_of():
    runtime, gpu, capture = _capturing()
    runtime.launch(_work("a"), 0)
    assert not capture.launches
    (done,) = gpu.launches
    (found,) = done.findings
    assert found.severity == "error" and found.kind == "graph"
    assert "a is launched on the default queue while a graph is captured" in found.diagnosis
    assert found.loc.startswith(__file__)


def test_a_queue_that_waits_for_the_one_under_capture_is_recorded():
    runtime, gpu, capture = _capturing()
    runtime.queues.recorded(1, OWN)
    runtime.queues.waits(OTHER, 1)
    runtime.launch(_work("forked"), OTHER)
    assert _names(capture.launches) == ["forked"] and not gpu.launches


def test_an_edge_leads_from_what_came_before_the_record_of_an_event():
    runtime, _, capture = _capturing()
    runtime.launch(_work("a"), OWN)
    runtime.queues.recorded(1, OWN)
    runtime.launch(_work("b"), OWN)
    runtime.queues.waits(OTHER, 1)
    runtime.launch(_work("forked"), OTHER)
    runtime.launch(_work("c"), OWN)
    runtime.queues.joins(OWN, OTHER)
    runtime.launch(_work("joined"), OWN)
    assert _names(capture.launches) == ["a", "b", "forked", "c", "joined"]
    assert capture.after == [(), (0,), (0,), (1,), (3, 2)]


def test_a_queue_that_waits_for_another_is_not():
    runtime, gpu, capture = _capturing()
    runtime.queues.joins(OTHER, 0)
    runtime.launch(_work("a"), OTHER)
    assert not capture.launches
    assert f"on queue {OTHER:#x}" in gpu.launches[0].findings[0].diagnosis


def test_nothing_is_said_without_a_capture():
    runtime, gpu, _ = _capturing()
    runtime.recording = None
    runtime.launch(_work("a"), 0)
    assert gpu.launches[0].findings == []


def test_a_capture_has_to_join_what_it_has_forked():
    runtime, _, capture = _capturing()
    assert not capture.unjoined
    runtime.launch(_work("a"), OWN)
    runtime.queues.recorded(1, OWN)
    runtime.queues.waits(OTHER, 1)
    assert not capture.unjoined  # OTHER has done nothing
    runtime.launch(_work("b"), OTHER)
    runtime.launch(_work("c"), OWN)
    assert capture.unjoined
    runtime.queues.recorded(2, OTHER)
    runtime.launch(_work("d"), OTHER)
    runtime.queues.waits(OWN, 2)
    assert capture.unjoined  # d comes after the record
    runtime.queues.recorded(3, OTHER)
    runtime.queues.waits(OWN, 3)
    assert not capture.unjoined
