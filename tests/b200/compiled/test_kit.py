"""The toolkit in software that `b200 exec` puts on PATH."""

import shutil

from b200.compiled import kit


def test_a_kit_runs_the_nvcc_of_its_own_package(tmp_path, monkeypatch):
    """Two checkouts with the same files have a kit each: one of them may be gone tomorrow."""
    here = kit._HERE
    other = shutil.copytree(here, tmp_path / "compiled")
    first = kit.made()
    monkeypatch.setattr(kit, "_HERE", other)
    second = kit.made()
    shutil.rmtree(second)
    assert str(here / "nvcc.py") in (first / "bin" / "nvcc").read_text() and first != second
