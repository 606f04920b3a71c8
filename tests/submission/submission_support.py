"""Runs submission.py in the emulator under a chosen configuration."""

from __future__ import annotations

from typing import Any

import b200
import reference
import submission
from lab.kernel_cases import inputs, poison
from submission import Config, Problem


def epilogue_warps(config: Config, problem: Problem) -> int:
    """Two a quarter of tensor memory where a tile has work for them."""
    return 8 if problem.num_products * config.tile_n >= 128 else 4


def waves_of(config: Config, problem: Problem) -> int:
    """How often the chip is filled with clusters, one tile each."""
    at_once = submission.clusters_at_once(config.cluster)
    return submission.ceil_div(submission.tile_count(config, problem), at_once)


def run(data: tuple, config: Config | None = None, schedule: str | None = None) -> Any:
    """The result of a checked launch in the emulator; AssertionError with the errors that it has."""
    gpu = b200.install(check=True, schedule=schedule)
    groups, result = submission.unpack(data)
    poison(result)
    submission.launch(submission.problem_of(data, groups), groups, config)
    # Remarks are no errors: a tile that is not full loads whole boxes and reads whole chunks.
    errors = [finding for finding in gpu.launches[-1].findings if finding.severity == "error"]
    assert not errors, f"{config}\n" + "\n".join(str(finding) for finding in errors[:3])
    return result


def verify(
    problem: Problem,
    config: Config | None = None,
    seed: int = 1111,
    schedule: str | None = None,
    kind: str = "official",
) -> None:
    """The kernel's result is the reference's, with no finding of the checker."""
    data = inputs(problem, seed, kind)
    result = run(data, config, schedule)
    right, report = reference.check_implementation(data, result)
    assert right, f"{problem}\n{config}\n{report}"
