"""Packs of the leaderboards' cases (lab/packs)."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import submission
from harness.qualify.packing import make_data
from hopper.pack import storages
from lab.packs import calls
from lab.packs.calls import Inputs
from lab.packs.official import fits_as_on
from reference import ref_kernel


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


class Calls:
    """The kernel by the reference, in place. late: each call has the inputs of the one before."""

    def __init__(self, late: bool):
        self.late, self.before, self.data = late, None, {}

    def inputs(self, seed: int) -> Inputs:
        data = make_data({"problem": "nvfp4_gemv", "m": 128, "k": 256, "l": 1, "seed": seed})
        self.data[params := bytes([seed])] = data
        return Inputs(data, storages(data), params)

    def __call__(self, params: bytes) -> None:
        *inputs, c = self.data[params]
        inputs = [tensor.clone() for tensor in inputs]
        taken = self.before if self.late and self.before else inputs
        self.before = inputs
        c.copy_(ref_kernel((*taken, c.clone())))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", [calls.with_own_tensors, calls.with_copied_inputs])
def test_a_call_with_the_inputs_of_the_one_before_is_found(way, late):
    call = Calls(late=False)
    sets = [call.inputs(seed) for seed in range(3)]
    assert calls.with_own_tensors(call, sets, 3) == []  # what is right is there
    call.late, call.before = late, None
    assert bool(way(call, sets, 5)) == late
