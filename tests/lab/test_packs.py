"""Packs of the leaderboards' cases (lab/packs)."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import submission
from lab.packs.official import fits_as_on


def test_packs_for_another_gpu_reckon_with_its_clusters(monkeypatch):
    """An H200's driver: 132, 66, 39 and 30 of 1 to 4 CTAs (docs/results/h200-clusters.json)."""
    monkeypatch.setattr(submission, "clusters_at_once", submission.clusters_at_once)
    fits_as_on("h200")
    assert [submission.clusters_at_once(size) for size in (1, 2, 3, 4)] == [132, 66, 39, 30]


def test_a_submission_that_does_not_ask_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "submission", ModuleType("submission"))
    with pytest.raises(SystemExit, match="has no function clusters_at_once"):
        fits_as_on("h200")


IDLE = "from reference import ref_kernel\n\ndef custom_kernel(data):\n    return ref_kernel(data)\n"


def test_no_pack_is_made_of_no_kernel(tmp_path, fork_server):
    (tmp_path / "idle.py").write_text(IDLE)
    out = tmp_path / "packs"
    of = ("--case", "m: 128; k: 256; l: 1", "--submission", str(tmp_path / "idle.py"))
    done = fork_server.run("-m", "lab", "packs", "make", "gemv", *of, "-o", str(out))
    assert (done.returncode, list(out.iterdir())) == (1, []), done.stderr
    assert "launched no kernel to pack" in done.stderr
