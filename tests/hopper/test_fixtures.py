"""The emulator against recordings of a Hopper GPU (tests/hopper/fixtures), bit for bit.

tests/data/hopper/h200.npz says on which machine, with which driver and when it was recorded, and
holds a digest of each kernel and its inputs: a fixture that was changed since must be recorded
again (`python -m tests.hopper.fixtures`).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from b200 import EmulatorError
from b200.chip.gpu import Gpu
from b200.chip.tensor import descriptors
from b200.program.parse import parse
from tests import DATA
from tests.hopper.fixtures import catalogue
from tests.hopper.fixtures.base import Fixture
from tests.hopper.fixtures.recording import load
from tests.hopper.fixtures.wgmma import LAYOUTS, ROWS, K, places

RECORDINGS, PROVENANCE = load(DATA / "hopper" / "h200.npz")
FIXTURES = catalogue()
REFUSED = [name for name, recording in RECORDINGS.items() if recording.error]
EXECUTABLE = [n for n, fixture in FIXTURES.items() if fixture.executable and n not in REFUSED]


def emulated(fixture: Fixture) -> list[np.ndarray]:
    """The recorded buffers, from the emulator."""
    buffers = [torch.from_numpy(b.copy()) for b in fixture.buffers]
    params = fixture.params([b.data_ptr() for b in buffers])
    shape = (fixture.grid, fixture.block, fixture.cluster, fixture.smem)
    Gpu().launch(parse(fixture.text), "k", *shape, params)
    return [buffers[i].numpy() for i in fixture.outputs]


def test_recorded_on_hopper():
    assert PROVENANCE["capability"] == [9, 0]
    assert {"device", "driver", "date", "torch"} <= set(PROVENANCE)


@pytest.mark.parametrize("name", FIXTURES)
def test_recording_is_of_this_kernel(name):
    assert RECORDINGS[name].digest == FIXTURES[name].digest


@pytest.mark.parametrize("name", EXECUTABLE)
def test_as_recorded(name):
    for got, want in zip(emulated(FIXTURES[name]), RECORDINGS[name].outputs, strict=True):
        differ = np.flatnonzero(got != want)
        assert not differ.size, (
            f"{differ.size} of {want.size} bytes differ, the first at {differ[0]}: the emulator has "
            f"{got[differ[0] :][:16].tobytes().hex()}, the {PROVENANCE['device']} {want[differ[0] :][:16].tobytes().hex()}"
        )


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_by_the_hardware(name):
    with pytest.raises(EmulatorError, match="coordinate"):
        emulated(FIXTURES[name])


@pytest.mark.parametrize("name", LAYOUTS)
def test_operand_addresses(name):
    """Where wgmma reads element [row, k] of a swizzled operand is where descriptors.py says, byte for byte."""
    layout = LAYOUTS[name]
    matrix = descriptors.MatrixDescriptor(
        layout.start, layout.lbo, layout.sbo, layout.base_offset, layout.mode
    )
    if layout.mn_major:
        chunks = descriptors.mn_major(matrix, 2 * ROWS, K).chunks
    else:
        chunks = descriptors.k_major(matrix, ROWS, 2 * K).chunks
    origin = layout.start - layout.start % descriptors.PERIOD
    elements = origin + 16 * chunks[:, :, None] + 2 * np.arange(8)
    expected = elements.reshape(chunks.shape[0], -1)
    expected = expected.T if layout.mn_major else expected
    assert np.array_equal(places(RECORDINGS[f"wgmma-{name}"].outputs[0]), expected)
