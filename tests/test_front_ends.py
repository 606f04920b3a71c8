"""docs/front-ends.md: each front end that runs has a command with a file that is here."""

from __future__ import annotations

import importlib.util
import re
import runpy

import pytest

import b200
from tests import ROOT

PAGE = (ROOT / "docs" / "front-ends.md").read_text()
ROWS = re.findall(r"^\| (.+) \| yes[^|]* \| (.+) \|$", PAGE, re.MULTILINE)


def test_each_front_end_has_a_command():
    """The others' commands are run by test_first_kernel.py and tests/b200/host/triton."""
    assert len(ROWS) >= 6
    for name, cell in ROWS:
        for path in re.findall(r"docs/examples/\S+?\.(?:py|cu)", cell):
            assert (ROOT / path).is_file(), name
        assert "docs/examples/" in cell or "SCRIPT.py" in cell or "](" in cell, name


@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("nvidia") is None,
    reason="cuda-python or NVRTC is not installed",
)
def test_the_example_of_cuda_python(capsys):
    gpu = b200.install()
    runpy.run_path(str(ROOT / "docs" / "examples" / "twice_cuda_python.py"), run_name="__main__")
    assert capsys.readouterr().out == "the last element: 1998.0\n"
    assert gpu.launches[-1].kernel == "twice" and not gpu.launches[-1].findings
