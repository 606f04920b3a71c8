"""Launches that overlap: what a call reads or writes of another call, in every order of the two."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import b200
import reference
import submission
from b200.hardware import SMEM_BYTES, SMEM_RESERVED
from lab.kernel_cases import LEVER_CASES, dual, gemm, gemv, group, inputs, poison
from submission import Config

WAIT = "        cute.arch.griddepcontrol_wait()\n"
TRIGGER = "        cute.arch.griddepcontrol_launch_dependents()\n"
NOTHING = "        pass\n"
LOADS = "                    self.load_stage(tile, tile.k_begin + j, state)\n"
BEHIND = LOADS + "                    cute.arch.griddepcontrol_wait()\n"
MISSING = "with no griddepcontrol.wait"


def variant(folder: Path, name: str, *changes: tuple[str, str]) -> types.ModuleType:
    """submission.py with pieces of text exchanged, each of which it has once. It is a file, for the
    DSL reads what it compiles from there.
    """
    text = Path(submission.__file__).read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CHANGES = {
    "on": (),
    "off": (("OVERLAPS_LAUNCHES = True", "OVERLAPS_LAUNCHES = False"),),
    "no wait": ((WAIT, NOTHING),),
    "wait behind the first loads": ((WAIT, NOTHING), (LOADS, BEHIND)),
    "no trigger": ((TRIGGER, NOTHING),),
}


@pytest.fixture(scope="module")
def variants(tmp_path_factory) -> Iterator[dict[str, types.ModuleType]]:
    folder = tmp_path_factory.mktemp("variants")
    made = {
        kind: variant(folder, "launches_" + kind.replace(" ", "_"), *changes)
        for kind, changes in CHANGES.items()
    }
    yield made
    for module in made.values():
        del sys.modules[module.__name__]


def call(module: types.ModuleType, data: tuple, config: Config | None = None) -> None:
    groups, _ = module.unpack(data)
    problem = module.problem_of(data, groups)
    module.launch(problem, groups, config and module.Config(**vars(config)))


class Launches:
    """The launches from here on. check, schedule: as of b200.install."""

    def __init__(self, check: bool = True, schedule: str | None = None):
        self.gpu = b200.install(check=check, schedule=schedule)
        self.before = len(self.gpu.launches)

    def errors(self) -> list[str]:
        findings = [f for launch in self.gpu.launches[self.before :] for f in launch.findings or ()]
        return [str(finding) for finding in findings if finding.severity == "error"]


def is_right(data: tuple) -> bool:
    return reference.check_implementation(data, submission.unpack(data)[1])[0]


PROBLEMS = {
    "gemv": (gemv(256, 512), None),
    "gemm": (gemm(256, 40, 1024), Config(cta_group=2, cluster_n=2, tile_n=64)),
    "K split": (gemm(128, 24, 1024), Config(split_k=4)),
    "dual": (dual(128, 24, 320), None),
    "group": (group((24, 128, 192), (8, 256, 64)), Config(persistent=True)),
    "tokens as rows": (gemm(256, 130, 512), Config(swap_ab=False)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_call_twice(name):
    """The second call writes what the first one writes, before it or after it."""
    problem, config = PROBLEMS[name]
    launches = Launches(schedule="pdl")
    data = inputs(problem, seed=1)
    poison(submission.unpack(data)[1])
    call(submission, data, config)
    call(submission, data, config)
    assert is_right(data) and launches.errors() == []


def chained() -> tuple[tuple, tuple]:
    """Two gemms of one kernel; the fp16 of the first one's c are codes of the second one's b."""
    first, second = inputs(gemm(128, 64, 256), seed=1), inputs(gemm(128, 60, 256), seed=2)
    memory = torch.as_strided(first[6], (64 * 128,), (1,)).view(torch.float4_e2m1fn_x2)
    b = memory.view(1, 128, 128).permute(1, 2, 0)
    return first, (second[0], b, *second[2:])


@pytest.mark.parametrize("schedule", [None, "pdl"])
@pytest.mark.parametrize("kinds", [("on", "on", "on"), ("off", "on", "off"), ("on", "off", "on")])
def test_a_call_reads_what_the_call_before_wrote(kinds, schedule, variants):
    """A launch that does not overlap stands before and behind one that does, as other kernels do."""
    launches = Launches(schedule=schedule)
    data = chained()
    poison(data[0][6])
    for kind, mine in zip(kinds, (data[0], data[1], data[0])):  # the last writes what is read
        call(variants[kind], mine)
    assert is_right(data[0]) and is_right(data[1]) and launches.errors() == []


@pytest.mark.parametrize("planted", ["no wait", "wait behind the first loads"])
def test_a_wait_that_is_missing_or_late_is_found(planted, variants):
    """The same calls as above. On hardware the loads would find codes of before."""
    launches = Launches()
    first, second = chained()
    call(variants[planted], first)
    call(variants[planted], second)
    assert any("is read that" in text and MISSING in text for text in launches.errors())


@pytest.mark.parametrize("planted", ["no wait", "wait behind the first loads"])
def test_and_gives_a_wrong_result_where_launches_overlap(planted, variants):
    Launches(check=False, schedule="pdl")
    first, second = chained()
    poison(first[6])
    call(variants[planted], first)
    call(variants[planted], second)
    assert not is_right(second)


def test_without_a_wait_two_calls_write_c_at_once(variants):
    launches = Launches()
    data = inputs(gemm(128, 64, 256), seed=1)
    call(variants["no wait"], data)
    call(variants["no wait"], data)
    assert any("is written that" in text and MISSING in text for text in launches.errors())


@pytest.mark.parametrize("schedule", [None, "pdl"])
def test_a_trigger_that_is_forgotten_is_legal(schedule, variants):
    launches = Launches(schedule=schedule)
    first, second = chained()
    call(variants["no trigger"], first)
    call(variants["no trigger"], second)
    assert is_right(first) and is_right(second) and launches.errors() == []


@pytest.mark.parametrize("name", LEVER_CASES)
def test_no_two_ctas_fit_an_sm(name):
    """Else a CTA that waits may hold tensor memory for which one of the launch before waits. As many
    stages as fit, two at least, are two thirds of what a CTA may ask for.
    """
    plan = submission.check(*LEVER_CASES[name])
    assert 2 * (plan.smem_bytes + SMEM_RESERVED) > SMEM_BYTES


def test_one_constant_switches_it_off(variants):
    """Of two calls the second one overlaps the first."""
    found, data = [], inputs(gemm(128, 64, 256), seed=1)
    for kind in ("on", "off"):
        launches = Launches()
        for _ in range(2):
            call(variants[kind], data)
        found.append(launches.gpu.machine.shape.dependent)
    assert found == [True, False]
