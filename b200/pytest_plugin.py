"""The pytest plugin: `pytest --b200` runs a project's tests on a B200 in software, and a test whose
kernels have a finding fails with it (docs/ci.md).

It is installed with the package, so every pytest of the environment imports this file. Without
`--b200` it adds options and does nothing else; testing.py has what it does then.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from b200 import Gpu
    from b200.chip.launch import Launch

NAME = "b200-session"
_MARK = (
    "b200(expect=, allow=, budget=, schedule=, check=): under --b200, findings that the test has to"
    " have or may have, and how its launches run"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("b200", "a B200 in software")
    add = group.addoption
    add("--b200", action="store_true", help="run CUDA on a B200 in software; findings fail a test")
    add("--b200-report", metavar="FILE.json", help="write all findings as JSON")
    add("--b200-sarif", metavar="FILE.sarif", help="write them as SARIF 2.1.0")
    add("--b200-github", action="store_true", help="print them as GitHub's annotations")
    add("--b200-baseline", metavar="FILE.json", help="known findings, which fail nothing")
    add("--b200-write-baseline", metavar="FILE.json", help="write a baseline of what is found")
    add("--b200-strict", action="store_true", help="remarks and incomplete checks fail, too")
    add("--b200-schedule", metavar="ORDER", help="as --schedule of b200 run")
    add("--b200-no-check", action="store_true", help="run the kernels, look for nothing")
    add("--b200-budget", type=float, metavar="S", help="check at most S seconds of a launch")
    add("--b200-shard", metavar="K/N", help="run the K-th of N parts of the tests")
    names = partial(add, action="append", default=[], metavar="NAME")
    names("--b200-kernel", help="only findings of this kernel count; repeatable")
    names("--b200-source", help="only findings at a line of this file count; repeatable")
    names("--b200-expect-kernel", help="fail where no test launches such a kernel; repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """A conftest.py may ask torch for a GPU when it is imported."""
    if early_config.known_args_namespace.b200:
        _begin(early_config)
    elif "B200_RUN" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
        from b200 import testing

        testing.join_the_run()  # a worker of `b200 run -m pytest -n 2`


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    if config.option.b200:
        _begin(config)


def _begin(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(NAME):
        from b200 import testing

        options = config.known_args_namespace
        config.pluginmanager.register(testing.Session(options), NAME)


@pytest.fixture
def b200_gpu(request: pytest.FixtureRequest) -> Gpu:
    """The software B200 (b200.Gpu). Without --b200 the test is skipped."""
    if not request.config.option.b200:
        pytest.skip("needs --b200")
    from b200 import testing

    return testing.gpu()


@pytest.fixture
def b200_launches(b200_gpu: Gpu) -> Callable[[], list[Launch]]:
    """A function: the launches of this test so far, a list of Launch."""
    before = len(b200_gpu.launches)
    return lambda: b200_gpu.launches[before:]
