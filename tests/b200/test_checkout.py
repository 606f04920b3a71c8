"""Which commit sources are of, and what a measurement says of it."""

from __future__ import annotations

import subprocess

from b200 import checkout
from harness.evaluator import made_by
from hopper import this_gpu
from tests import ROOT


def test_a_checkout_has_its_commit_and_says_that_it_was_changed(tmp_path):
    def git(*words):
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *names, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert checkout.commit(tmp_path) == checkout.repository(tmp_path) == ""
    git("init", "--quiet")
    (tmp_path / "a.py").write_text("a = 1")
    git("add", "a.py")
    git("commit", "--quiet", "-m", "one")
    commit = git("rev-parse", "--short", "HEAD")
    assert checkout.commit(tmp_path) == commit
    assert made_by.sources(tmp_path) == {"sources": f"{tmp_path.name} {commit}"}
    (tmp_path / "a.py").write_text("a = 2")
    assert checkout.commit(tmp_path) == f"{commit}+"
    (tmp_path / "installed").mkdir()
    assert checkout.commit(tmp_path / "installed") == ""


def test_what_is_of_this_repository_is_no_foreign_source(tmp_path):
    assert made_by.sources(ROOT / "docs" / "examples") == {} == made_by.sources(tmp_path)


def test_a_measurement_has_its_gpu_and_the_commit():
    made = this_gpu.made_by({"device": "NVIDIA H200"})
    assert made == {"device": "NVIDIA H200", "commit": checkout.commit(checkout.PACKAGE)}
