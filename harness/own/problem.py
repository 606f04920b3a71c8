"""The file of a problem of one's own, and whether what a kernel returns is right.

The file is Python. It has

    CASES        dicts of sizes, the keywords of `inputs` but for the seed
    inputs       inputs(..., seed) -> the tensors that the kernel is given, a tuple, on the CPU
    reference    reference(*inputs) -> the right output, or a tuple of outputs

and may have

    NAMES        names of the outputs, for messages
    values       values(*outputs) -> {name: tensor}: what is compared, where the outputs themselves
                 (codes, scales) may differ and be right
    TOLERANCE    (rtol, atol) for all, or by name {name: (rtol, atol)}; 1e-3 for floating point
    mistakes     mistakes(*inputs) -> pairs (text, outputs): mistakes that `diff` tries, too
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from b200.command_line import undecodable
from harness.evaluator.cases import Case, CaseError, format_args, parse
from task import SEED, CaseArgs, Problem
from utils import clone_data

NEEDED = ("CASES", "inputs", "reference")
RTOL = ATOL = 1e-3
QUOTED = 3  # elements that a message quotes
Values = dict[str, torch.Tensor]


class ProblemError(ValueError):
    """A problem's file that cannot be used: one line."""


@dataclass(frozen=True)
class OwnProblem(Problem):
    """A problem of a file: its names are those of the file."""

    file: str = ""


def read(path: Path) -> OwnProblem:
    """The problem of a file. Raises ProblemError."""
    module = load(path)
    keys = (*_sizes(module, path), "seed")
    tests = tuple({"seed": SEED, **dict(case)} for case in module.CASES)
    return OwnProblem(path.stem, path.stem, keys, tests, (), str(path.resolve()))


def load(path: Path) -> ModuleType:
    """The module of a problem's file, with all that it needs. Raises ProblemError."""
    if not path.is_file():
        raise ProblemError(f"--problem: there is no file {path}")
    if why := undecodable(path):
        raise ProblemError(f"--problem: {why}")
    spec = importlib.util.spec_from_file_location(f"problem_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProblemError(f"{path.name} cannot be imported: {error}") from error
    if absent := [name for name in NEEDED if not hasattr(module, name)]:
        raise ProblemError(
            f"{path.name} lacks {', '.join(absent)}: a problem has CASES, inputs(..., seed) and"
            " reference(*inputs)"
        )
    if not module.CASES or not all(isinstance(case, Mapping) for case in module.CASES):
        raise ProblemError(f"{path.name}: CASES must be dicts of sizes, got {module.CASES!r}")
    return module


def _sizes(module: ModuleType, path: Path) -> tuple[str, ...]:
    """The keywords of `inputs` but for the seed."""
    names = tuple(inspect.signature(module.inputs).parameters)
    if "seed" not in names:
        raise ProblemError(f"{path.name}: inputs must take a seed, its parameters are {names}")
    return tuple(name for name in names if name != "seed")


def cases_of(problem: OwnProblem, lines: Sequence[str], mode: str) -> list[Case]:
    """The cases that lines of text ask for; without lines those of the file, for diff the first.
    Raises CaseError.
    """
    given = [parse(line) for line in lines] or list(problem.tests)
    kept = given[:1] if mode == "diff" and not lines else given
    return [make_case(problem, args) for args in kept]


def make_case(problem: OwnProblem, args: CaseArgs) -> Case:
    args = {"seed": SEED, **args}
    if set(args) != set(problem.keys):
        raise CaseError(
            f"{format_args(args)!r}: a case of {problem.name} has the keys"
            f" {', '.join(problem.keys)} (the parameters of `inputs`)"
        )
    ordered = {key: args[key] for key in problem.keys}
    return Case(problem, ordered, format_args(ordered))


class Truth:
    """What is right for a problem's file."""

    def __init__(self, path: Path):
        self.module = load(path)

    def inputs(self, args: CaseArgs, seed: int | None = None) -> tuple[Any, ...]:
        """The inputs of a case, of its seed or another one."""
        seed = int(args["seed"]) if seed is None else seed
        return as_tuple(self.module.inputs(**{**args, "seed": seed}))

    def input_names(self, data: tuple[Any, ...]) -> list[str]:
        names = list(inspect.signature(self.module.reference).parameters)
        return names if len(names) == len(data) else [f"input {i}" for i in range(len(data))]

    def wanted(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        """The right outputs; the reference may change what it is given."""
        return as_tuple(self.module.reference(*clone_data(data)))

    def values(self, outputs: tuple[Any, ...]) -> Values:
        """What is compared, by name."""
        if hasattr(self.module, "values"):
            return dict(self.module.values(*outputs))
        names = getattr(self.module, "NAMES", None) or self._numbered(len(outputs))
        return dict(zip(names, outputs, strict=True))

    @staticmethod
    def _numbered(count: int) -> list[str]:
        return ["the output"] if count == 1 else [f"output {i}" for i in range(count)]

    def tolerance(self, name: str, want: torch.Tensor) -> tuple[float, float]:
        """(rtol, atol) of a value."""
        given: Any = getattr(self.module, "TOLERANCE", None)
        found = given
        if isinstance(given, Mapping):
            found = cast("Mapping[str, Any]", given).get(name)
        if found is not None:
            return float(found[0]), float(found[1])
        return (RTOL, ATOL) if want.dtype.is_floating_point else (0.0, 0.0)

    def mistakes(self, data: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        if not hasattr(self.module, "mistakes"):
            return
        for text, outputs in self.module.mistakes(*clone_data(data)):
            yield text, as_tuple(outputs)

    def check(self, data: tuple[Any, ...], output: Any) -> tuple[bool, str]:
        """(whether an output is right, what is wrong)."""
        outputs, wanted = as_tuple(output), self.wanted(data)
        if why := _unlike(outputs, wanted):
            return False, why
        got, want = self.values(outputs), self.values(wanted)
        lines = [line for name in want if (line := self._differs(name, got[name], want[name]))]
        return not lines, "\n".join(lines)

    def wrong(self, name: str, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Where two values differ by more than the tolerance, bool."""
        rtol, atol = self.tolerance(name, want)
        x, y = got.double(), want.double()
        near = (x - y).abs() <= atol + rtol * y.abs()
        return ~(near | (x == y) | (x.isnan() & y.isnan()))

    def _differs(self, name: str, got: torch.Tensor, want: torch.Tensor) -> str:
        bad = self.wrong(name, got, want)
        count = int(bad.sum())
        if not count:
            return ""
        places = (tuple(place) for place in _rows(bad.nonzero()[:QUOTED]))
        quoted = (f"{at} is {got[at].item():g}, expected {want[at].item():g}" for at in places)
        return f"{name}: {count:,} of {bad.numel():,} elements differ: {'; '.join(quoted)}"


def _rows(numbers: Any) -> list[list[int]]:
    """A tensor of two dimensions as lists; torch leaves the type of these open."""
    return numbers.tolist()


def as_tuple(output: Any) -> tuple[Any, ...]:
    return tuple(cast("Sequence[Any]", output)) if isinstance(output, (tuple, list)) else (output,)


def _unlike(outputs: tuple[Any, ...], wanted: tuple[Any, ...]) -> str:
    """How outputs differ from what is expected in number, kind, shape; "" if they do not. A dtype
    may be another one: values are compared.
    """
    if len(outputs) != len(wanted):
        return f"custom_kernel returns {len(outputs)} tensors, expected {len(wanted)}"
    for i, (got, want) in enumerate(zip(outputs, wanted)):
        if not isinstance(got, torch.Tensor):
            return f"output {i} is a {type(got).__name__}, expected a tensor"
        if got.shape != want.shape:
            return f"output {i} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    return ""
