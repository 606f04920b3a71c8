"""A Hopper GPU is asked for where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests import ROOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_run_says_so_in_one_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('started')\n")
    done = subprocess.run(
        [sys.executable, "-m", "b200", "run", "--device", "hopper", str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "b200 run: no Hopper GPU: torch finds no CUDA GPU here\n"
