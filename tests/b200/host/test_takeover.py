"""What is taken over of other packages (b200/host/features.py), and what if a name of it is gone."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest

from b200.errors import EmulatorError
from b200.host import takeover
from b200.host.features import FEATURES
from b200.host.takeover import Feature


@pytest.fixture(scope="module")
def records(fork_server) -> list[dict[str, Any]]:
    done = fork_server.run("-m", "tests.b200.host.without_names")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_name_is_tried(records):
    assert len(records) == sum(2 + len(feature.names) for feature in FEATURES)


def test_raw_ptx_runs_without_all_names_of_a_feature(records):
    without = [r for r in records if r["way"] == "raw_ptx"]
    assert len(without) == len(FEATURES)
    assert [r for r in without if r["said"]] == []


def test_with_all_names_every_feature_works(records):
    """But for what the versions installed are said to lack."""
    lacking = {feature.what: takeover.missing(feature) for feature in FEATURES}
    plain = [r for r in records if r["way"] == "use" and not r["names"]]
    assert [r for r in plain if r["said"] and not lacking[r["feature"]]] == []
    assert [r for r in plain if r["said"] and lacking[r["feature"]] not in r["said"]] == []


def test_without_a_name_its_feature_says_so_in_a_line(records):
    optional = {feature.what for feature in FEATURES if feature.optional}
    tried = 0
    for record in (r for r in records if r["way"] == "use"):
        if record["names"] and record["gone"] and record["feature"] not in optional:
            tried += 1
            said, name = record["said"], record["names"][0].rpartition(":")[2].rpartition(".")[2]
            assert name in said and "\n" not in said, record
            of_torch_itself = ("AttributeError", "NameError")  # which cannot do without, either
            assert record["kind"] in ("EmulatorError", *of_torch_itself), record
    assert tried > 25


# --- the loop, on a package of the test


@pytest.fixture
def package(monkeypatch) -> types.ModuleType:
    """A module `b200_test_package` that features here stand on; b200.host has it as a patch, too."""
    module = types.ModuleType("b200_test_package")
    monkeypatch.setitem(sys.modules, "b200_test_package", module)
    monkeypatch.setitem(sys.modules, "b200.host.b200_test_package", module)

    class Thing:
        @classmethod
        def make(cls, *args):
            return cls, args

    for function in (lambda *args: args,):
        function.__module__ = module.__name__
        module.use = function  # pyright: ignore[reportAttributeAccessIssue]
    module.Thing = Thing  # pyright: ignore[reportAttributeAccessIssue]
    return module


def feature(patch: str = "put", **fields: Any) -> Feature:
    return Feature("a thing", f"b200_test_package:{patch}", **fields)


def test_a_patch_is_called_with_what_it_is_given(package):
    seen = []
    package.put = seen.append
    takeover.take_over([feature(names=("b200_test_package:Thing.make",))], "given")
    assert seen == ["given"] and package.use(1) == (1,)


def test_one_of_several_names_is_enough(package):
    package.put = lambda given: None
    assert takeover.missing(feature(names=("b200_test_package:no|b200_test_package:use",))) == ""


def test_a_name_that_is_gone_refuses_the_entries(package):
    package.put = lambda given: pytest.fail("put in place all the same")
    entries = ("b200_test_package:*", "b200_test_package:Thing.make", "b200_test_package:absent")
    takeover.take_over([feature(names=("b200_test_package:Other.name",), entries=entries)], None)
    for use in (package.use, package.Thing.make):
        with pytest.raises(
            EmulatorError, match=r"^a thing: .* has no b200_test_package.Other.name"
        ):
            use()


def test_a_patch_that_fails_refuses_the_entries(package):
    def put(given):
        raise AttributeError("no attribute 'x'")

    package.put = put
    takeover.take_over([feature(entries=("b200_test_package:use",))], None)
    with pytest.raises(EmulatorError, match="^a thing: AttributeError: no attribute 'x'$"):
        package.use()


def test_calls_that_do_not_mean_it_go_on(package):
    package.put = lambda given: None
    names, entries = ("b200_test_package:no",), ("b200_test_package:Thing.make",)
    takeover.take_over([feature(names=names, entries=entries, means="cuda")], None)
    derived = type("Derived", (package.Thing,), {})
    assert derived.make(1, "cpu") == (derived, (1, "cpu"))
    device = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda"))
    for argument in ("cuda:0", device, device.device):
        with pytest.raises(EmulatorError, match="a thing"):
            derived.make(argument)
