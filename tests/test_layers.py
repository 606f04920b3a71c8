"""Who may import whom, read from the source of every module: imports at the top, inside functions
and under TYPE_CHECKING alike.

`violations` is the rule. The tests below hold the checkout against it, and planted modules that
break it, so that it is known to see.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter

import pytest

from tests import ROOT

# b200/, the lowest first. A module may import from its own package and from lower layers; those of
# one layer do not know one another.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("b200.effects", "b200.errors", "b200.isa"),
    (
        "b200.registry",
        "b200.formats",
        "b200.command_line",
        "b200.hardware",
        "b200.pictures",
        "b200.checkout",
        "b200.records",
        "b200.spaces",
        "b200.sparse",
        "b200.supervised",
        "b200.started",  # tells the programs that a program starts; the standard library alone
    ),
    ("b200.occupancy",),  # of what hardware says
    ("b200.program",),
    ("b200.chip.unwritten",),
    ("b200.chip.heap",),
    ("b200.chip.global_memory",),
    ("b200.chip.state", "b200.chip.operations"),
    ("b200.chip.alu", "b200.chip.memory"),
    ("b200.chip.sync",),
    ("b200.chip.copies", "b200.chip.tensor"),
    ("b200.chip",),  # fragment, scheduler, hang, the instruction set as a whole, gpu
    ("b200.checker", "b200.clock", "b200.time_budget"),
    ("b200.explore",),  # all orders of what a checked run did
    ("b200.host",),
    ("b200.host.cuda",),  # programs that are compiled by nvcc, and the driver they call
    ("b200.host.cuda_python", "b200.host.triton"),
    ("b200.reports",),  # what a run has found, for people and for CI
    ("b200",),  # composes; only commands stand above it
    ("b200.script", "b200.run_arguments", "b200.machine_info"),  # `b200 run`
    ("b200.testing", "b200.compiled"),  # `pytest --b200`, `b200 exec`
    (
        "b200.__main__",
        "b200.spawned_process",
        "b200.started.sitecustomize",
        "b200.pytest_plugin",
    ),
)
# Hosts of other programs than the DSL's and torch's. They are there where somebody asks for them: the
# composition for `install`, and `b200 run`.
ON_REQUEST = ("b200.host.cuda", "b200.host.cuda_python", "b200.host.triton")
MAY_ASK = ("b200", "b200.compiled.*", "b200.machine_info", "b200.script")
# The checkout around it: what of the checkout each may import, itself aside.
AROUND: dict[str, tuple[str, ...]] = {
    "task": (),
    "utils": (),
    "reference": ("task", "utils"),
    "submission": ("task",),
    "hopper": ("b200",),
    "harness": ("b200", "hopper", "reference", "task", "utils"),
    "eval": ("harness", "b200", "task"),
    # The laboratory is about the kernel of this checkout, too; nothing but tests is above it.
    "lab": ("b200", "harness", "hopper", "reference", "submission", "task", "utils"),
    "tests": (
        "b200",
        "eval",
        "harness",
        "hopper",
        "lab",
        "reference",
        "submission",
        "task",
        "utils",
    ),
}
SUBMISSION_PACKAGES = {"torch", "cutlass", "cuda"}  # what the leaderboards' runner has
OURS = {"b200", *AROUND}
# `b200 run SCRIPT` puts there what `python SCRIPT` would; a spawned process has no path yet when it
# is told to install.
PATH_EDITS = {
    "b200.script",
    "b200.spawned_process",
    "b200.started.sitecustomize",
}


@dataclass(frozen=True)
class Import:
    """`name` is a module of the sources where it is one, else what the statement names."""

    name: str
    line: int
    only_types: bool


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """These and all inside them. To walk through their expressions, too, takes as long as to parse."""
    for statement in body:
        yield statement
        parts = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
        for part in parts:
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(part, field, []))


def imports(module: str, source: str, modules: Container[str]) -> Iterator[Import]:
    """Every import of a module."""
    every = list(_statements(ast.parse(source).body))
    typed = {
        id(inner)
        for node in (every if "TYPE_CHECKING" in source else ())
        if isinstance(node, ast.If) and isinstance(node.test, (ast.Name, ast.Attribute))
        if ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in _statements(node.body)
    }
    for node in every:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{module}:{node.lineno}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in full]
        else:
            continue
        for name in dict.fromkeys(names):
            yield Import(name, node.lineno, id(node) in typed)


def layer(module: str) -> tuple[int, str]:
    """(height, package) of a module of b200: the longest entry of LAYERS that it lies in."""
    entries = [(entry, i) for i, row in enumerate(LAYERS) for entry in row]
    found = [(entry, i) for entry, i in entries if f"{module}.".startswith(f"{entry}.")]
    entry, height = max(found, key=lambda item: len(item[0]))
    return height, entry


def _wrong_in_b200(module: str, to: Import) -> str:
    """Why a module of b200 may not import another, or ""."""
    (height, package), (other_height, other) = layer(module), layer(to.name)
    if package == other or other_height < height:
        return ""
    if to.only_types and package.startswith("b200.chip") and other.startswith("b200.chip"):
        return ""  # annotations: the state names the types of what the groups put into it
    return f"{other} is {'beside' if height == other_height else 'above'} {package}"


def _in(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _wrong(module: str, to: Import) -> str:
    """Why a module may not import another, or ""."""
    mine, other = module.partition(".")[0], to.name.partition(".")[0]
    if _in(to.name, ON_REQUEST) and not _in(module, ON_REQUEST):
        if mine != "tests" and not any(fnmatchcase(module, each) for each in MAY_ASK):
            return f"only {' and '.join(MAY_ASK)} ask for it"
    if mine == "b200":
        if other == "b200":
            return _wrong_in_b200(module, to)
        return f"{other} is not below b200" if other in OURS else ""
    if other not in OURS:
        known = SUBMISSION_PACKAGES | sys.stdlib_module_names
        return "the runner does not have it" if mine == "submission" and other not in known else ""
    if other == mine or other in AROUND[mine]:
        return ""
    return f"of the checkout, {mine} may import {', '.join(AROUND[mine])}"


def _edits_path(source: str) -> Iterator[int]:
    """Lines that change sys.path."""
    if not re.search(r"\bsys\W*\.\W*path", source):
        return
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value]  # sys.path.insert(...)
        for target in targets:
            if isinstance(target, ast.Subscript):
                target = target.value
            if ast.unparse(target) == "sys.path":
                yield node.lineno


def _names_the_lab(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of strings that are the name of a module of the laboratory, or of what `-m` in
    front of it runs.
    """
    if not re.search(r"[\"']lab\b", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and re.fullmatch(r"lab(\.\w+)+", str(node.value)):
            yield node.lineno, str(node.value)
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
            if ("-m", "lab") in zip(values, values[1:]):
                yield node.lineno, "lab"


def violations(modules: Mapping[str, str]) -> list[str]:
    """What breaks the rules in modules given by name and source."""
    found, graph = [], {}
    for module, source in modules.items():
        every = list(imports(module, source, modules))
        for to in every:
            if why := _wrong(module, to):
                found.append(f"{module}:{to.line} imports {to.name}: {why}")
        graph[module] = {i.name for i in every if not i.only_types and i.name in modules}
        if "lab" not in AROUND.get(module.partition(".")[0], ()) and not _in(module, ("lab",)):
            named = _names_the_lab(source)
            found += [f"{module}:{line} names {name}: it may not run it" for line, name in named]
        if module not in PATH_EDITS:
            found += [f"{module}:{line} edits sys.path" for line in _edits_path(source)]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"circle: {' <- '.join(error.args[1])}")
    return found


def checkout() -> dict[str, str]:
    """The modules of the checkout: name -> source."""
    files = [*ROOT.glob("*.py")]
    for folder in ("b200", "harness", "hopper", "lab", "tests"):
        files += ROOT.glob(f"{folder}/**/*.py")
    names = (".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files)
    return {n.removesuffix(".__init__"): f.read_text() for n, f in zip(names, files, strict=True)}


def test_the_checkout_keeps_its_layers():
    modules = checkout()
    assert len(modules) > 150 and OURS <= {name.partition(".")[0] for name in modules}
    assert violations(modules) == []


def test_eval_alone_enters_the_evaluator_from_the_top():
    modules = {name: source for name, source in checkout().items() if "evaluator" in source}
    command = "harness.evaluator.command"
    found = {
        m for m, source in modules.items() for i in imports(m, source, modules) if i.name == command
    }
    assert {name for name in found if not name.startswith("tests.")} == {"eval"}


def test_every_layer_exists():
    modules = checkout()
    assert [entry for row in LAYERS for entry in row if entry not in modules] == []


PLANTED = {
    "upwards": ({"b200.chip.gpu": "import b200.checker.observer"}, "b200.checker is above b200.chip"),
    "inside a function": (
        {"b200.chip.hang": "def f():\n    from b200.checker import words"},
        "b200.chip.hang:2 imports b200.checker: b200.checker is above b200.chip",
    ),
    "for types only": (
        {"b200.program.parse": "if TYPE_CHECKING:\n    from b200.chip.state import CTA"},
        "b200.chip.state is above b200.program",
    ),
    "beside": ({"b200.clock.sm": "from b200 import checker", "b200.checker": ""}, "beside"),
    "group beside group": ({"b200.chip.copies.tma": "import b200.chip.tensor.mma"}, "beside"),
    "the composition": ({"b200.clock.timed": "import b200"}, "b200 is above b200.clock"),
    "raw CUDA, unasked": (
        {"b200.host.dsl.engine": "def f():\n    from b200.host.cuda.errors import BuildError"},
        "b200.host.dsl.engine:2 imports b200.host.cuda.errors: only b200 and b200.compiled.* and b200.machine_info and b200.script ask for it",
    ),
    "cuda-python, unasked": ({"harness.evaluator.pool": "import b200.host.cuda_python"}, "only b200 and"),
    "cuda-python below raw CUDA": ({"b200.host.cuda.modules": "import b200.host.cuda_python.kernels"}, "is above"),
    "b200 knows no problem": ({"b200.clock.sm": "from harness import cases"}, "not below b200"),
    "nor its tests": ({"b200.clock.sm": "import tests.oracles"}, "not below b200"),
    "nor a Hopper GPU": ({"b200.script": "import hopper"}, "not below b200"),
    "the submission": ({"submission": "import b200"}, "submission may import task"),
    "its packages": ({"submission": "import numpy"}, "the runner does not have it"),
    "the harness": ({"harness.evaluator.report": "from tests import ROOT"}, "harness may import b200"),
    "the kernel": ({"harness.evaluator.report": "import submission"}, "harness may import b200"),
    "b200 knows no laboratory": ({"b200.clock.sm": "from lab.calibrations import tma"}, "not below b200"),
    "nor does the harness": (
        {"harness.qualify.pipelines": "def f():\n    from lab.packs import official"},
        "harness.qualify.pipelines:2 imports lab.packs: of the checkout, harness may",
    ),
    "nor eval.py": ({"eval": "import lab.tables.figures"}, "eval may import harness"),
    "nor the submission": ({"submission": "import lab"}, "submission may import task"),
    "a module by its name": ({"eval": "COMMANDS = {'sass': 'lab.code.sass'}"}, "eval:1 names lab.code.sass"),
    "a command": ({"harness.qualify.plan": "a = 'python -m lab'\nb = ['-m', 'lab', 'sass']"}, "plan:2 names lab"),
    "the laboratory knows no test": ({"lab.mutations.kinds": "from tests import ROOT"}, "lab may import b200"),
    "nor eval.py's commands": ({"lab.corpus": "import eval"}, "lab may import b200"),
    "sys.path": ({"harness.evaluator.report": "import sys\nsys.path.insert(0, '.')"}, ":2 edits sys.path"),
    "circle": (
        {"b200.clock.a": "def f():\n    import b200.clock.b", "b200.clock.b": "import b200.clock.a"},
        "circle: b200.clock.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("modules, message", PLANTED.values(), ids=PLANTED)
def test_a_planted_violation_is_seen(modules, message):
    (found,) = violations(modules)
    assert message in found


def test_what_is_allowed_is_left_alone():
    fine = {
        "b200.chip.state": "if TYPE_CHECKING:\n    from b200.chip.fragment import WarpState",
        "b200.chip.fragment": "from b200.chip.state import CTA",
        "b200.checker.observer": "import numpy\nfrom b200.chip.fragment import Fragment",
        "b200": "def install():\n    from b200.host import dsl",
        "b200.host.cuda_python.nvrtc": "from b200.host.cuda.errors import BuildError",
        "b200.script": "import sys\nimport b200\nsys.path[0] = ''\nfrom b200.host.cuda import errors",
        "lab.tuning.study": "import submission, harness.evaluator.cases\nfrom b200.clock import Options",
        "submission": "import ctypes\nfrom cuda.bindings import driver\nfrom task import input_t",
        "tests.test_x": "import submission, b200.checker.words",
    }
    assert violations(fine) == []
