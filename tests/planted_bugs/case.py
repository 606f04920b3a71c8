"""A planted bug: a small kernel with one mistake, its corrected twin, what must be said of it."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch

import b200
from b200 import EmulatorError
from b200.chip import hang, order, placement
from b200.chip.gpu import Gpu
from b200.hardware import SM_COUNT
from b200.program.module import Program
from b200.program.parse import parse

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
parsed = functools.lru_cache(maxsize=8)(parse)  # tests run a text again and again, in a row


@contextmanager
def chip_of(sms: int) -> Iterator[None]:
    """A B200 of which only this many SMs are there: a grid that fills it is a small one."""
    with ExitStack() as stack:
        if sms != SM_COUNT:
            smaller = functools.partial(placement.Placement, (sms,), 0)
            stack.enter_context(mock.patch.object(order, "Placement", smaller))
            for module in (placement, hang):
                stack.enter_context(mock.patch.object(module, "SM_COUNT", sms))
        yield


class Source:
    """The listing of a kernel: every line has a number that findings name; `mark` remembers one.

    bounds: further directives, as `.minnctapersm 1`.
    """

    def __init__(self, params: str, threads: int, smem: int = 0x8000, bounds: str = ""):
        self.params, self.threads, self.smem = params, threads, smem
        self.lines: list[str] = []
        self.marks: dict[str, list[int]] = {}
        self.labels = 0
        self.bounds = bounds

    def __call__(self, text: str, mark: str | None = None):
        self.lines.append(text)  # one line of the listing
        if mark is not None:
            self.marks.setdefault(mark, []).append(len(self.lines))

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def wait(self, barrier: str, parity: int | str, mark: str | None = None):
        """Spin until a phase of an mbarrier is over."""
        again = self.label()
        self(
            f"{again}: mbarrier.try_wait.parity.shared::cta.b64 %p20, [{barrier}], {parity};", mark
        )
        self(f"@!%p20 bra {again};")

    def only(self, first: int, body: Callable[[], None], last: int | None = None):
        """Threads `first` to `last` (default: the one) execute what `body` writes."""
        after = self.label()
        last = first if last is None else last
        self(f"setp.lt.u32 %p1, %r0, {first};")
        self(f"setp.gt.u32 %p2, %r0, {last};")
        self("or.pred %p3, %p1, %p2;")
        self(f"@%p3 bra {after};")
        body()
        self(f"{after}: mov.u32 %r99, 0;")

    def text(self, name: str) -> str:
        body = "\n".join(f".loc 1 {i} 0\n{line}" for i, line in enumerate(self.lines, 1))
        return f"""{HEADER}
.extern .shared .align 1024 .b8 dyn[];
.visible .entry {name}({self.params})
.reqntid {self.threads}, 1, 1 {self.bounds}
{{
.reg .pred %p<40>;
.reg .b16 %h<40>;
.reg .b32 %r<200>;
.reg .b64 %rd<100>;
.reg .b128 %rq<4>;
.reg .f32 %f<100>;
{body}
ret;
}}
.file 1 "{name}.ptx"
"""


@dataclass
class Outcome:
    """What a run said: the text of everything found, and whether the result was right."""

    findings: list
    error: str = ""
    error_kind: str = ""
    right: bool | None = None

    @property
    def clean(self) -> bool:
        return not self.findings and not self.error and self.right is not False

    @property
    def kinds(self) -> set[str]:
        return {f.kind for f in self.findings} | ({self.error_kind} if self.error_kind else set())

    @property
    def text(self) -> str:
        return "\n".join([self.error, *map(str, self.findings)]).strip()


@dataclass(frozen=True)
class PlantedBug:
    """One planted bug.

    build: bug? -> Source. kind: of the finding ("race", ...) or of the error ("fault", "deadlock").
    words: what the report must contain. marks: lines it must name. args: tensors to launch with,
    made anew each time, the last one the output; expected: its value. grid, cluster: of the launch.
    schedule: the one that shows the bug best. sms: of the chip.
    """

    name: str
    title: str
    build: Callable[[bool], Source]
    kind: str
    words: tuple[str, ...]
    marks: tuple[str, ...]
    args: Callable[[], list] = list
    expected: Callable[[list], torch.Tensor | None] = lambda args: None
    grid: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    schedule: str | None = None
    sms: int = SM_COUNT

    def run(
        self,
        bug: bool,
        schedule: str | None = None,
        check: bool | str = True,
        launches: int = 1,
    ) -> tuple[Source, Outcome]:
        """launches: how many, each with arguments of its own; the outcome is the last one's, or of
        the first that fails.
        """
        schedule = schedule or self.schedule
        source = self.build(bug)
        gpu = Gpu()
        gpu.machine = b200.machine(gpu.memory, check, schedule=schedule)
        program = parsed(source.text(self.name))
        kept = []  # so that each launch finds its arguments at other addresses
        for _ in range(launches):
            kept.append(self.args())
            with chip_of(self.sms):
                outcome = self._launch(gpu, program, source, kept[-1])
            if outcome.error:
                break
        return source, outcome

    def _launch(self, gpu: Gpu, program: Program, source: Source, args: list) -> Outcome:
        kernel = program.kernels[self.name]
        data = bytearray(kernel.param_bytes)
        for parameter, arg in zip(kernel.params, args, strict=True):
            if isinstance(arg, bytes):
                data[parameter.offset : parameter.offset + parameter.size] = arg
                continue
            value = arg.data_ptr() if isinstance(arg, torch.Tensor) else arg
            code = {4: "<I", 8: "<Q"}[parameter.size]
            struct.pack_into(code, data, parameter.offset, value)
        block = (source.threads, 1, 1)
        try:
            launch = gpu.launch(
                program, self.name, self.grid, block, self.cluster, source.smem, bytes(data)
            )
        except EmulatorError as error:
            found = list(error.findings)
            return Outcome(found, str(error), error.kind)
        want = self.expected(args)
        right = None if want is None else bool(torch.equal(args[-1], want))
        return Outcome(list(launch.findings or ()), right=right)
