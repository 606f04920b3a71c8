"""The GPU of these tests is the software B200, whatever the machine has."""

from __future__ import annotations

import functools

import pytest

import b200
import submission


@pytest.fixture(scope="module", autouse=True)
def software() -> None:
    """`submission.pick` asks a GPU for its resident clusters: were that a real one, nothing in this
    process could be in software afterwards. Nor is there pinned memory of tests before in this
    process: beside it each launch is looked at by itself, and no cluster follows another.
    """
    b200.install()
    b200._runtime.works.pinned = False


@pytest.fixture
def four_sms(monkeypatch):
    """A chip so small that every cluster of a persistent launch has several tiles, with shared
    memory so small that the ring of stages goes around.
    """
    monkeypatch.setattr(submission, "clusters_at_once", lambda size: 4 // size)
    monkeypatch.setattr(submission, "SMEM_BYTES", 160 * 1024)
    for name in ("kernel_for", "compile_kernel"):  # what is compiled for the whole chip stays
        function = getattr(submission, name).__wrapped__
        monkeypatch.setattr(submission, name, functools.cache(function))
