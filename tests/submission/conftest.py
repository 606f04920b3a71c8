"""The GPU of these tests is the software B200, whatever the machine has."""

from __future__ import annotations

import pytest

import b200


@pytest.fixture(scope="module", autouse=True)
def software() -> None:
    """`submission.pick` asks a GPU for its resident clusters: were that a real one, nothing in this
    process could be in software afterwards.
    """
    b200.install()
