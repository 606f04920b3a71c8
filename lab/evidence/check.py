"""What is picked if a chip holds other clusters than the kernel takes for granted: is it right?

The checker watches a few clusters of each, and what these wrote is held against the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.evaluator.cases import Case
from harness.qualify.packing import results_of
from harness.qualify.submission import Submission
from lab.evidence import kernels
from lab.evidence.kernels import Wanted
from lab.evidence.watch import Checking
from reference import ATOL, RTOL, ref_kernel


def other_picks(submission: Submission, data_of: Callable[[Case], Any]) -> Iterator[Wanted]:
    """What is picked under the other cluster tables, and not under its own."""
    for item in kernels.picks(submission, data_of):
        if item.table is not None:
            yield item


def wrong(submission: Submission, gpu: Checking, item: Wanted, data: Any) -> list[str]:
    """What is wrong with a few clusters of it, a line each."""
    for c in results_of(data):
        c.fill_(float("nan"))
    submission.reckon_with(item.table)
    submission.run(data, item.config)
    submission.reckon_with(None)
    found = [str(f) for f in gpu.launches[-1].findings or () if f.severity == "error"]
    expected = ref_kernel(data)
    for c, right in zip(results_of(data), expected if isinstance(expected, list) else [expected]):
        written = ~c.isnan()
        if not torch.allclose(c[written].float(), right[written].float(), rtol=RTOL, atol=ATOL):
            found.append("what was written is not what the reference says")
    if all(c.isnan().all() for c in results_of(data)):
        found.append("nothing was written")
    return found
