"""A module is taken over when the program imports it, and not before."""

from __future__ import annotations

import subprocess
import sys

from b200.host.imports import when_imported
from tests import ROOT

PROGRAM = """
import importlib.util, sys
importlib.util.find_spec("pip")  # turns setuptools' own distutils off, and so its import
import b200
b200.install()
assert not {"torch", "cutlass", "triton"} & set(sys.modules)
import torch
assert torch.cuda.is_available()  # taken over by now
assert not {"torch.utils.cpp_extension", "cutlass", "triton"} & set(sys.modules)
import cutlass
assert "b200.host.dsl.engine" in sys.modules  # taken over by now
"""


def test_installing_imports_no_build_tools_and_no_compiler():
    """setuptools, which torch's extensions need, cannot be imported in every process; torch and the
    DSL take a second each.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_is_taken_over_once(tmp_path, monkeypatch):
    (tmp_path / "taken_over_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    when_imported("taken_over_later", lambda module: seen.append(module))
    assert not seen
    import taken_over_later  # type: ignore[import-not-found]

    assert seen == [taken_over_later] and taken_over_later.value == 1
    when_imported("taken_over_later", lambda module: seen.append(module.value))
    assert seen == [taken_over_later, 1]
