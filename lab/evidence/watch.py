"""A GPU in software that runs a few clusters of each launch and says which forms it has.

    gpu = Watching()
    b200.install(check=False, gpu=gpu)
    custom_kernel(data)
    gpu.forms  # of all launches until now

The clusters of a grid do not speak to each other, so a few show what all do: the first, the last,
which has what is left over of a persistent grid, and one between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from b200.checker import Checker
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.chip.machine import Machine
from b200.chip.operations import Mma, TmemCopy
from b200.chip.order import InOrder
from b200.chip.state import Cluster
from b200.program.module import Kernel, Program
from lab.evidence import forms


class Few(InOrder):
    """The usual order of the first, a middle and the last cluster of a grid only."""

    plain = False

    def again(self, dependent: bool) -> Few:
        return Few()

    def clusters(self, every: Iterator[Cluster]) -> Iterator[Cluster]:
        listed = list(every)
        for i in sorted({0, len(listed) // 2, len(listed) - 1}):
            yield listed[i]


class Listening(Few):
    """Collects the descriptors of the tensor core's operations in `heard`, and leaves its
    arithmetic out.
    """

    def __init__(self, heard: set[str]):
        super().__init__()
        self.heard = heard

    def issue(self, operation, warp, apply) -> None:
        self.heard.update(forms.operation(operation))
        if not isinstance(operation, (Mma, TmemCopy)):
            super().issue(operation, warp, apply)


class Watching(Gpu):
    """forms: of all launches."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: set[str] = set()

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        self.machine = Machine(self.memory, Listening(self.forms))
        done = super().execute(program, kernel, shape, params)
        self.forms.update(forms.instructions(kernel))
        self.forms.update(forms.tensormaps(kernel, params))
        self.forms.update(forms.launch(kernel, done, params, self.attributes))
        return done


class Checking(Gpu):
    """Runs a few clusters of each launch with the checker: its findings are in `launches`."""

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        self.machine = Machine(self.memory, Few(), (Checker(),))
        return super().execute(program, kernel, shape, params)
