"""Pictures: what can be written where, and names of kernels in their titles."""

from __future__ import annotations

from pathlib import Path

import pytest

from b200 import pictures
from b200.program.names import from_here, readable


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pictures.NoPicture, match=r"matplotlib: run .*\[plot\]") as raised:
        pictures.new(4, 3)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["map", "map.jpeg", "map.png.txt"])
def test_a_name_that_no_picture_has(name):
    with pytest.raises(pictures.NoPicture, match="ends in one of .png, .svg, .pdf, .html"):
        pictures.check(Path(name))


def test_a_page_has_its_heading_once(tmp_path):
    path = tmp_path / "a.html"
    figure = pictures.new(3, 2)
    heading = pictures.set_title(figure.subplots(), "a case\nand more of it", path)
    pictures.save(figure, path, heading)
    page = path.read_text()
    assert "<h1>a case</h1>" in page and page.count("a case") == 2  # the window's title, the page's
    assert "and more of it" in page


@pytest.mark.parametrize("suffix", pictures.SUFFIXES)
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        figure = pictures.new(3, 2)
        figure.subplots().plot([1, 2], [3, 4])
        pictures.save(figure, path, "a < b")
    first, second = (path.read_bytes() for path in paths)
    assert len(first) > 500 and first == second


@pytest.mark.parametrize(
    "symbol, name",
    [
        ("kernel_cutlass_kernel_submissionKernel_object_at__Copy_Atom_Thr_0", "Kernel.kernel"),
        ("kernel_cutlass_add_tensorptrf32gmem_o_1", "add"),
        ("kernel_cutlass_gemm_kernel_TiledMMA_ThrLayoutVMNK11110000_0", "gemm_kernel"),
        ("_Z4gemvPKfi", "gemv"),
        ("_ZN3foo3barIiEEvPT_", "foo::bar"),
        ("_ZN12_GLOBAL__N_14gemvEv", "gemv"),
        ("plain_c_name", "plain_c_name"),
    ],
)
def test_readable_names(symbol, name):
    assert readable(symbol) == name


def test_files_below_the_current_directory_are_named_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = f"{tmp_path}/k.py:3: race (at {tmp_path}/k.py:4), /else{tmp_path}/k.py:5, {tmp_path}"
    assert from_here(report) == f"k.py:3: race (at k.py:4), /else{tmp_path}/k.py:5, {tmp_path}"
