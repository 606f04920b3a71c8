"""A module is taken over when the program imports it, and not before."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading

import pytest

from b200.host.imports import when_imported
from tests import ROOT

PROGRAM = """
import importlib.util, os, sys, threading
importlib.util.find_spec("pip")  # turns setuptools' own distutils off, and so its import
import b200
b200.install()
assert b200.unfinished() == []
assert not {"torch", "cutlass", "triton"} & set(sys.modules)
if (child := os.fork()) == 0:
    from b200.host.torch.devices import as_cuda  # a part of ours before torch
    import torch
    os._exit(not as_cuda(torch.ones(1, device="cuda")).is_cuda)
assert os.waitpid(child, 0)[1] == 0
importlib.util.find_spec("torch")  # as transformers looks for it
threading.Thread(target=importlib.import_module, args=["torch"]).start()
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


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """A module that is not there yet: its file, and a list of what was taken over."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    seen = []
    when_imported("waited_for", seen.append)
    return tmp_path / "waited_for.py", seen


def test_a_module_that_a_program_looks_for_first_is_taken_over(waited_for):
    file, seen = waited_for
    assert importlib.util.find_spec("waited_for") is None
    file.write_text("value = 1\n")
    importlib.invalidate_caches()
    assert importlib.util.find_spec("waited_for") is not None and not seen
    from waited_for import value  # type: ignore[import-not-found]

    assert seen == [sys.modules["waited_for"]] and value == 1


def test_an_import_that_fails_says_so_and_the_next_is_taken_over(waited_for):
    file, seen = waited_for
    with pytest.raises(ModuleNotFoundError, match="^No module named 'waited_for'$"):
        importlib.import_module("waited_for")
    file.write_text("import a_part_that_is_not_there\n")
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="^No module named 'a_part_that_is_not_there'$"):
        importlib.import_module("waited_for")
    assert not seen and "waited_for" not in sys.modules
    file.write_text("value = 1\n")
    assert importlib.import_module("waited_for") is seen[0]


def test_who_imports_it_in_another_thread_gets_it_taken_over(waited_for):
    """Each thread waits for the import and for what takes it over."""
    file, seen = waited_for
    file.write_text("import time\ntime.sleep(0.05)\n")
    importlib.invalidate_caches()
    counts = []

    def imports():
        importlib.import_module("waited_for")
        counts.append(len(seen))

    threads = [threading.Thread(target=imports) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1, 1, 1, 1]


def test_a_forbidden_import_is_no_module(monkeypatch):
    """None among the modules forbids an import (documentation of sys.modules)."""
    monkeypatch.setitem(sys.modules, "waited_for", None)
    seen = []
    when_imported("waited_for", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("waited_for")
    assert not seen
