"""Which test files come to the CuTe DSL, and which of these have to run with each version.

Most tests give PTX to the emulator, and `import b200` imports nothing of the DSL. A file may come to
it if it, or a module of tests/, harness/, hopper/ or lab/ that it imports, does what can lead there: imports the
DSL, the submission or the host layer, installs the emulator, or starts a program.

Of them run with other versions of the DSL, torch, Triton and Python those that go through a surface of a
package whose version is another: all but what is APART, and of ONLY where one of the packages named
is. What is new goes through all. `python -m tests.dsl` lists the files, and where it is given names of
packages, the files of these.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tests import ROOT

MODULES = {"cutlass", "cuda", "submission", "eval", "subprocess", "multiprocessing"}
# The host layer takes the DSL over; its commands do so for a script.
HOST = ("b200.host", "b200.script", "b200.__main__")
CALLS = {"install", "run_cuda"}  # of b200
FIXTURES = {"run_eval", "stand_in", "fork_server"}
READ = ("tests.", "harness.", "hopper.", "lab.")  # modules that are looked into
PACKAGES = frozenset({"dsl", "torch", "triton", "python"})
# Of tests/: what comes to the DSL, as it starts a program or imports a part of the host layer, and
# says the same with each version of a package.
APART = {
    "b200/checker/*": "kernels in PTX",
    "b200/chip/*": "kernels in PTX, and the schedules of one kernel",
    "b200/clock/*": "drawings",
    "b200/compiled/*": "programs that nvcc compiles; no package of Python is in their process",
    "hopper/*": "what a Hopper GPU is given, and tables of its words",
    "b200/host/cuda/*": "programs that nvcc compiles",
    "b200/isa/*": "forms of instructions against ptxas",
    "b200/test_run_cuda.py": "programs that nvcc compiles",
    "harness/lint/*": "texts of submissions",
    "harness/measure/*": "probes in PTX",
    "harness/test_compare_picture.py": "drawings",
    "harness/test_h200_clock.py": "a launch in PTX",
    "harness/test_ladder.py": "a table of others' times",
    "harness/test_qualify*": "a rehearsal of the report, by stand-ins",
    "harness/test_raw_cuda.py": "a program that nvcc compiles",
    "harness/test_slips.py": "products of wrong kernels",
    "lab/*": "the laboratory, which works with one version",
    "test_readme.py": "pages",
    "test_dsl.py": "this rule",
    "submission/test_submission_picks.py": "arithmetic of the host",
}
# Tests of files of which the rest runs.
APART_TESTS = {
    "b200/reports/test_pytest_plugin.py::test_a_baseline_*": "pytest, of which there is one version",
    "b200/reports/test_pytest_plugin.py::test_shards_*": "pytest, of which there is one version",
    "b200/reports/test_pytest_plugin.py::test_the_time_of_a_job_*": "signals; test_ends.py runs",
    "b200/test_run.py::test_a_cuda_program*": "programs that nvcc compiles",
    "b200/test_run.py::test_a_main_that_is_included": "a program that nvcc compiles",
    "b200/test_run.py::test_programs_that_are_refused": "programs that nvcc compiles",
    "harness/test_bad_inputs.py::test_a_time_is_not_lost_*": "drawings",
    "harness/test_compare.py::test_right_wrong_and_crashing_*": "a report; test_eval.py runs",
    "harness/test_eval.py::test_constants_of_the_clock_*": "the clock",
    "harness/test_eval.py::test_random_shapes_*": "draws of shapes",
    "harness/test_foreign.py::test_a_right_kernel_*": "the clock",
    "harness/test_foreign.py::test_a_wrong_kernel_*": "the clock",
    "harness/test_foreign.py::test_diff_knows_*": "what is said of wrong results",
    "harness/test_foreign.py::test_work_on_a_side_queue_*": "queues; b200/host/test_queues.py runs",
    "harness/test_launcher.py::test_ptxas_*": "ptxas",
    "harness/test_own_problem.py::test_diff_names_*": "what is said of wrong results",
    "harness/test_tune.py::test_what_hangs_*": "a report; test_eval.py runs",
    "submission/test_submission_code.py::test_kernelguard_*": "a static checker of the text",
    "submission/test_submission_config.py::test_a_configuration_is_picked_*": "arithmetic of the host",
    "submission/test_submission_levers.py::test_a_dual_without_*": "stages; test_lever runs",
    "submission/test_submission_levers.py::test_a_k_split_*": "rounding; test_lever runs",
    "submission/test_submission_levers.py::test_sampled_pair": "pairs; test_lever has each alone",
    "submission/test_submission_levers.py::test_the_same_input_*": "orders; test_schedules.py runs",
    "submission/test_submission_levers.py::test_who_has_a_tile_less_*": "stages; test_lever runs",
    "submission/test_submission_shapes.py::test_of_*": "what the checker leaves out",
    "submission/test_submission_shapes.py::test_other_values": "values, for one code",
    "submission/test_submission_shapes.py::test_random_shape": "test_smallest_sizes runs",
    "test_first_kernel.py::test_the_output_*": "pages",
}
THROUGH = (  # of APART, what a version's compiler or its headers decide
    "b200/checker/test_planted_bugs_*",
    "b200/chip/test_schedules.py",
    "b200/host/cuda/test_side_queues.py",
    "b200/host/cuda/test_when_imported.py",
    "lab/test_evidence.py",
)
# Files that go through surfaces of some packages, which are named, and not of the others.
ONLY = {
    "b200/checker/test_planted_bugs_dsl.py": "dsl",
    "b200/checker/test_planted_bugs_gluon.py": "triton",
    "b200/checker/test_planted_bugs_pipelines.py": "dsl",
    "b200/chip/test_schedules.py": "dsl",
    "b200/host/cuda/*": "torch",  # its library and its headers
    "b200/host/torch/test_compiled.py": "torch triton",  # inductor
    "b200/reports/*": "python",
    "harness/test_own_problem.py": "triton torch",
    "harness/test_triton_examples.py": "triton torch",
    "submission/*": "dsl torch",
}


def depends(path: Path) -> bool:
    """Whether the file at `path` may come to use the DSL."""
    seen: set[Path] = set()
    left = [path]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        comes_to_it, imported = _read(file)
        if comes_to_it:
            return True
        left += imported
    return False


def by_version(path: Path, test: str = "") -> frozenset[str]:
    """The packages with each version of which the file at `path` has to run, or a test in it of this
    name, without parameters.
    """
    name = path.relative_to(ROOT / "tests").as_posix()
    apart = _matches(name, APART) and not _matches(name, THROUGH)
    if apart or _matches(f"{name}::{test}", APART_TESTS) or not depends(path):
        return frozenset()
    return frozenset(next((ONLY[row].split() for row in ONLY if fnmatchcase(name, row)), PACKAGES))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@functools.cache
def _read(path: Path) -> tuple[bool, list[Path]]:
    """Whether a file itself may come to use the DSL, and the files that it imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in CALLS:
            return True, []
        if isinstance(node, ast.arg) and node.arg in FIXTURES:
            return True, []
        names += _imported(node)
    if any(name.split(".")[0] in MODULES or name.startswith(HOST) for name in names):
        return True, []
    return False, [file for name in names for file in _files(name)]


def _imported(node: ast.AST) -> list[str]:
    """Names of the modules that a statement imports, and of what it takes from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _files(name: str) -> Iterator[Path]:
    """The file of a module that is looked into, also where `name` is something in it."""
    if name.startswith(READ):
        for module in (name, name.rpartition(".")[0]):
            path = ROOT / module.replace(".", "/")
            yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))


if __name__ == "__main__":
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if by_version(test) & (set(sys.argv[1:]) or PACKAGES):
            print(test.relative_to(ROOT).as_posix())
