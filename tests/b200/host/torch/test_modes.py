"""Dispatch modes of ours: who does not use torch's compiler does not import it for them."""

from __future__ import annotations

import sys
import types

import pytest

from b200.host.torch.modes import Mode

CAPTURES = """
import sys, torch
graph, x = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
with torch.cuda.graph(graph):
    x += 1
graph.replay()
assert x.eq(1).all() and "torch._dynamo" not in sys.modules
"""


def test_to_capture_a_graph_imports_no_compiler(tmp_path, fork_server):
    """It takes two CPU seconds."""
    (tmp_path / "captures.py").write_text(CAPTURES)
    options = ("--no-again", "--may-launch-nothing")
    done = fork_server.run("-m", "b200", "run", *options, "captures.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_there", (False, True))
def test_a_mode_is_hidden_from_a_compiler_that_is_there(monkeypatch, is_there):
    """As torch hides one of its own: by a function around it."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    if is_there:
        monkeypatch.setitem(sys.modules, "torch._dynamo", types.ModuleType("torch._dynamo"))

    class Ours(Mode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **kwargs or {})

    assert hasattr(Ours.__torch_dispatch__, "__wrapped__") == is_there
