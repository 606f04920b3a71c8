"""Compilers whose kernels the software B200 does not run: one line that names them."""

from __future__ import annotations

import sys

import pytest

import b200
from b200.host import triton


@pytest.fixture(scope="module", autouse=True)
def gpu():
    return b200.install()


def refused(function) -> str:
    with pytest.raises(b200.EmulatorError) as caught:
        function()
    assert caught.value.kind == "unsupported" and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def fake_triton(tmp_path, monkeypatch):
    """A package with Triton's modules and the names that a launch goes through."""
    folder = tmp_path / "triton" / "runtime"
    folder.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("from triton.runtime import driver, jit")
    (folder / "jit.py").write_text(
        "class JITFunction:\n"
        "    def __getitem__(self, grid):\n"
        "        return lambda *args, **kw: self.run(*args, grid=grid, warmup=False, **kw)\n"
        "    def run(self, *args, grid, warmup, **kwargs):\n"
        "        raise RuntimeError('0 active drivers ([]). There should only be one.')\n"
    )
    (folder / "driver.py").write_text("def _create_driver():\n    return 'a driver'\n")
    before = [name for name in sys.modules if name.split(".")[0] == "triton"]
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_triton(fake_triton):
    triton.install()
    from triton.runtime import driver, jit  # pyright: ignore[reportMissingImports]

    assert "Triton kernels are not in the software B200" in refused(lambda: jit.JITFunction()[1](0))
    assert refused(driver._create_driver) == triton.REFUSAL
