"""What made a modelled time of a submission: digests of all that it depends on, and the DSL."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from b200 import checkout
from harness import digest

DSL = "nvidia-cutlass-dsl"


def modelled(submission: Path, constants: Mapping[str, float] | None = None) -> dict[str, str]:
    """The digests of harness/digest.py, that of the submission, where it is of another
    repository which commit of that, and the version of the DSL that compiled it. constants: those
    with another value than the clock's.
    """
    return {
        **digest.made_by(constants),
        "ranges": digest.part("ranges"),
        "submission": digest.of_file(submission.resolve()),
        **sources(submission.resolve().parent),
        "dsl": importlib.metadata.version(DSL),
    }


@cache
def sources(folder: Path) -> dict[str, str]:
    """`sources` of a folder of another repository, its name and commit; else nothing."""
    commit = "" if checkout.ours(folder) else checkout.commit(folder)
    return {"sources": f"{checkout.repository(folder)} {commit}"} if commit else {}
