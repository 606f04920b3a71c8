"""The rule by which tests are run with each version of the DSL, on files that come to it or not."""

from __future__ import annotations

import pytest

from tests import ROOT, dsl


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch\nfrom b200.chip.gpu import Gpu", False),
        ("from tests.b200.ptx_support import kernel", False),
        ("def test():\n    import cutlass.cute", True),
        ("from submission import Config", True),
        ("from harness.evaluator import cases", False),
        ("from harness.evaluator.pool import Pool", True),
        ("from harness.evaluator import running", True),
        ("from b200.host.runtime import Runtime", True),
        ("import b200\nb200.install()", True),
        ("import subprocess", True),
        ("def test(run_eval): pass", True),
        ("from tests.submission import submission_support", True),
        ("from tests.fork_server import ForkServer", True),
    ],
)
def test_what_comes_to_the_dsl(tmp_path, source, expected):
    file = tmp_path / "test_it.py"
    file.write_text(source)
    assert dsl.depends(file) is expected


def test_most_of_the_instruction_set_does_not():
    files = list((ROOT / "tests/b200/chip").glob("test_*.py"))
    assert sum(map(dsl.depends, files)) < len(files) / 4
