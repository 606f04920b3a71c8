"""b200.run_ptx and b200.Gpu: raw PTX on arrays of numpy, in a process that loads nothing else."""

from __future__ import annotations

import dataclasses
import gc
import re
import subprocess
import sys

import numpy as np
import pytest

import b200
from b200.checker.finding import Finding
from b200.chip.launch import Launch
from tests import ROOT
from tests.b200.ptx_support import kernel

ADDRESS = "ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd2, %r1, 4, %rd1;"
DOUBLE = kernel(
    f"{ADDRESS} ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r2; st.global.u32 [%rd2], %r2;",
    [".u64 x"],
)
STORE = kernel(
    "ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [v]; st.global.u32 [%rd1], %r1;",
    [".u64 x", ".u32 v"],
)


def test_the_example_of_the_page():
    """In a process of its own: with numpy alone, and with what it says it prints."""
    page = (ROOT / "docs/reference/api.md").read_text()
    section = page.partition("## Raw PTX")[2]
    code = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[1]
    code += "import sys\nprint(sorted({'torch', 'cutlass', 'cuda', 'pebble', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    promised = re.search(r"print\(.*\)  # (.*)", code)[1]
    assert done.stdout == f"{promised}\n[]\n", done.stderr


def test_views_and_what_lies_around_them():
    whole = np.arange(96, dtype=np.int32)
    launch = b200.run_ptx(DOUBLE, None, 1, (32,), [whole[32:64]])
    expected = np.arange(96)
    expected[32:64] *= 2
    assert np.array_equal(whole, expected) and launch.findings == []
    with pytest.raises(
        b200.EmulatorError, match=r"in no tensor's allocation.*an array of \(96,\) int32"
    ):
        b200.run_ptx(DOUBLE, None, 1, (32,), [whole[80:]])


def test_an_array_that_is_gone_is_no_memory():
    gpu = b200.Gpu()
    array = np.zeros(1 << 20, np.int32)
    address = array.ctypes.data
    gpu.launch(DOUBLE, None, (1, 1, 1), (32, 1, 1), args=[array])
    del array
    gc.collect()
    with pytest.raises(b200.EmulatorError, match="in no tensor's allocation"):
        gpu.launch(DOUBLE, None, (1, 1, 1), (32, 1, 1), args=[address])


@pytest.mark.parametrize(
    "value, stored",
    [
        (7, 7),
        (-1, 0xFFFFFFFF),
        (np.int32(-2), 0xFFFFFFFE),
        (np.int64(5), 5),
        (np.float32(1), 0x3F800000),
        (np.float64(1), 0x3F800000),
        (1.0, 0x3F800000),
        (np.bool_(True), 1),
        (b"\x01\x02\x03\x04", 0x04030201),
    ],
)
def test_scalars(value, stored):
    x = np.zeros(1, np.uint32)
    b200.run_ptx(STORE, "k", 1, 1, [x, value])
    assert x[0] == stored


def test_wrong_arguments():
    frozen = np.zeros(1, np.uint32)
    frozen.flags.writeable = False
    for args, said in [
        ([frozen, 1], "argument 0: the array is read-only: pass a copy"),
        ([np.array([None]), 1], "argument 0: the array is of objects"),
        ([np.zeros(1, np.uint32)], "has 2 parameters, got 1 arguments"),
        (
            [np.zeros(1, np.uint32), "x"],
            "argument 1: expected 4 bytes, a tensor, an array or a number",
        ),
    ]:
        with pytest.raises(TypeError, match=re.escape(said)):
            b200.run_ptx(STORE, None, 1, 1, args)
    with pytest.raises(ValueError, match="expected one to three sizes"):
        b200.run_ptx(STORE, None, (1, 1, 1, 1), 1, [np.zeros(1, np.uint32), 1])
    with pytest.raises(AttributeError, match="no attribute 'Cpu'"):
        b200.Cpu  # noqa: B018


def test_check_and_time_and_text():
    x = np.zeros(1, np.uint32)
    race = b200.run_ptx(STORE + "\0", None, 2, 64, [x, 1])
    assert race.ptx == STORE and race.findings is not None
    assert b200.run_ptx(STORE, None, 1, 1, [x, 1], check=False).findings is None
    assert b200.run_ptx(STORE, None, 1, 1, [x, 1], timing=True).time.time_us > 0


@pytest.mark.parametrize("offset", [0, 4, 16, 28])
def test_an_allocation_within_a_sector_is_timed(offset):
    """A sector is 32 bytes, and the array 4: malloc aligns to 16."""
    bytes_ = bytearray(96)
    aligned = -np.frombuffer(bytes_, np.uint8).ctypes.data % 32
    x = np.frombuffer(bytes_, np.uint32, 1, aligned + offset)
    assert b200.run_ptx(STORE, None, 1, 1, [x, 7], timing=True).time.time_us > 0 and x[0] == 7


def test_the_package_says_that_it_is_typed_and_has_one_version():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert setuptools["dynamic"]["version"] == {"attr": "b200.__version__"}
    assert setuptools["package-data"]["b200"] == ["py.typed"] and (ROOT / "b200/py.typed").exists()


def test_the_stable_names_are_those_of_the_page():
    page = (ROOT / "docs/reference/api.md").read_text()
    functions = re.findall(r"^\| `b200\.(\w+)\(", page, re.MULTILINE)
    assert {*functions, "EmulatorError"} == set(b200.__all__)
    assert all(hasattr(b200, name) for name in b200.__all__)
    for title, described in (("Launch", Launch), ("Finding", Finding)):
        section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        fields = re.findall(
            r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
        )
        names = {field.name for field in dataclasses.fields(described)}
        assert fields and not [name for name in fields if name not in names | set(dir(described))]


def test_the_changelog_begins_with_this_version():
    changelog = (ROOT / "docs/CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+?),", changelog, re.MULTILINE)[1] == b200.__version__
