"""A pack by the clock of an H200."""

from __future__ import annotations

import struct

import torch

from b200.chip.copies.tensormap import TensorMap
from harness.qualify.h200_clock import model
from hopper.pack import Recorder, packed_launches
from tests.hopper.test_side_by_side_text import BOX, ROWS, pair_kernel


def test_the_h200_model_runs_what_is_compared(tmp_path):
    """Bytes of a pair, by the clock of an H200; without epilogues pairs are left out."""
    text, _ = pair_kernel(False)
    source, out = (torch.zeros(n, dtype=torch.uint8) for n in (1 << 17, 8 * BOX))
    one = TensorMap(source.data_ptr(), 0, (128, ROWS), (128,), (128, ROWS), (1, 1)).encode()
    params = struct.pack("<Q", out.data_ptr()).ljust(64, b"\0") + 2 * one
    recorder = Recorder()
    recorder.launch(text, "k", (2, 1, 1), (32, 1, 1), (2, 1, 1), 4 * BOX + 60, params)
    packed_launches(recorder).save(tmp_path / "pair.npz")
    found = model(tmp_path / "pair.npz", {}, epilogues=True)
    assert found.us and 1 < found.us < 20 and found.dram_mb == BOX / 1e6, found.message
    assert model(tmp_path / "pair.npz", {}).message == "loads that signal the other CTA of a pair"
