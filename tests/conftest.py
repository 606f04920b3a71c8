"""Fixtures: eval.py as a command, and files that stand in for submission.py."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from b200.chip import tensors
from b200.host import own_gpu
from tests import ROOT, dsl
from tests.fork_server import LONGEST, ForkServer

SEE_A_GPU = "B200_TESTS_SEE_A_GPU"  # set: GPUs stay visible (tests/b200/host/test_no_driver.py)
# The collector goes over what a test makes once, behind it, and not each 700 objects: that was a
# twelfth of the CPU time of all tests.
COLLECTED_AT = (100_000, 50, 100)
# A thread of torch's waits for its next work by looking for it all the time. Two in each of two
# processes took a third of the CPU time where a test makes a reference.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
for _name in ONE_THREAD:  # now: another conftest.py may import torch; of what tests start, too
    os.environ.setdefault(_name, "1")
POPCORN_FD = 63  # the runner's pipe of a command: a file after this descriptor


@dataclass(frozen=True)
class Finished:
    """A command that ended. popcorn: (key, value) as it wrote them into the runner's pipe."""

    status: int
    stdout: str
    stderr: str
    popcorn: list[tuple[str, str]]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


def pytest_configure(config: pytest.Config) -> None:
    """Of a GPU that is there only `-m cuda` hears: the others are of the software B200, and what
    they start shall choose it. Bytecode is kept whatever the environment says: without it each
    process compiles this project, and collecting the tests takes twice as long.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gc.set_threshold(*COLLECTED_AT)
    if config.getoption("markexpr") != "cuda" and not os.environ.get(SEE_A_GPU):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("markexpr")
    if not any(word in asked for word in ("dsl", "versions", "through_")):
        return  # nobody asks, and to read all files takes a second in each process
    for item in items:
        if dsl.depends(item.path):
            item.add_marker("dsl")
        test = item.originalname if isinstance(item, pytest.Function) else item.name
        packages = dsl.by_version(item.path, test)
        if packages:
            item.add_marker("versions")
        for package in packages:
            item.add_marker(f"through_{package}")


def pytest_collection_finish() -> None:
    set_apart()


@pytest.hookimpl(trylast=True)  # after fixtures are gone
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None:
        set_apart()
    if own_gpu.is_used() and item.get_closest_marker("cuda") is None:
        raise AssertionError("it has used the machine's GPU: nothing is in software after it")


def set_apart() -> None:
    """What tests leave, modules and compiled kernels, stays to the end. So the collector, and the
    emulator's search for tensors among its objects at each launch, need not go over it: that takes
    longer than most launches.
    """
    tensors.set_apart()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Tests that `-m dsl` leaves out run with no other version of it, so must not come to it."""
    before = "cutlass" in sys.modules
    result = yield
    if "cutlass" in sys.modules and not before and not dsl.depends(item.path):
        result.force_exception(AssertionError("it imports the DSL, which tests/dsl.py missed"))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Of this process: commands without the time of their imports."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def run_eval(tmp_path: Path, fork_server: ForkServer) -> Callable[..., Finished]:
    """run_eval(*arguments, popcorn=False, env={}, limit=seconds): eval.py from another folder."""

    def run(
        *arguments: str,
        popcorn: bool = False,
        env: dict[str, str] | None = None,
        limit: float = LONGEST,
    ) -> Finished:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("POPCORN", "NVFP4"))
        }
        if "--device" not in arguments:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # auto would take a GPU that is there
        environment |= env or {}
        command = [str(ROOT / "eval.py"), *arguments]
        pipe = tmp_path / "popcorn"
        if popcorn:
            environment["POPCORN_FD"] = str(POPCORN_FD)
        files = {POPCORN_FD: pipe} if popcorn else {}
        sees_a_gpu = environment.get("CUDA_VISIBLE_DEVICES") != ""
        how: dict[str, Any] = {"cwd": tmp_path, "env": environment, "limit": limit, "files": files}
        how["anew"] = sees_a_gpu and bool({"cuda", "hopper"} & set(arguments))
        done = fork_server.run(*command, **how)
        written = pipe.read_text().splitlines() if popcorn else []
        pipe.unlink(missing_ok=True)
        lines = [(key, value) for key, _, value in (line.partition(": ") for line in written)]
        return Finished(done.returncode, done.stdout, done.stderr, lines)

    return run


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], str]:
    """stand_in(body): a submission whose custom_kernel(data) has this body.

    m: rows of c; launch() runs an empty kernel in the emulator.
    """

    def write(body: str) -> str:
        path = tmp_path / "stand_in.py"
        indented = "\n".join("    " + line for line in body.strip("\n").splitlines())
        path.write_text(
            "import os, time\n"
            "import b200\n"
            "from reference import ref_kernel\n\n"
            "PTX = '.version 8.8 .target sm_100a .address_size 64 .visible .entry k() { ret; }'\n\n"
            "def launch(ptx=PTX, **shape):\n"
            "    b200.install().launch(ptx, None, **{'grid': (1, 1, 1), 'block': (32, 1, 1)} | shape)\n\n"
            "class Unpicklable(Exception):\n"
            "    def __reduce__(self):\n"
            "        raise RuntimeError('cannot be pickled')\n\n"
            "def custom_kernel(data):\n"
            "    c = data[0][0][2] if isinstance(data[0], list) else data[-1]\n"
            "    m = c.shape[0]\n" + indented + "\n"
        )
        return str(path)

    return write
