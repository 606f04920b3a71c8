"""Probes and the constants they tell: a clock with altered constants plays the unknown chip."""

from __future__ import annotations

import json

import pytest

from b200.clock.constants import BY_NAME
from b200.clock.overrides import read_file, read_overrides
from harness.measure import command
from harness.measure.devices import Clock
from harness.measure.fit import as_constants, fit, measure
from harness.measure.probes import PROBES

BANDWIDTHS = ("l2_bandwidth", "dram_bandwidth")  # a probe of all SMs takes seconds
QUICK = [probe for probe in PROBES if probe.constant not in BANDWIDTHS]


def altered(probes, factors):
    """A value other than the table's for the constant of each probe."""
    return {
        probe.constant: BY_NAME[probe.constant].value * factors[i % len(factors)]
        for i, probe in enumerate(probes)
    }


def found_again(probes, factors=(0.8, 1.25, 1.15)):
    truth = altered(probes, factors)
    found = as_constants(fit(measure(Clock(truth), probes), probes))
    assert set(found) == set(truth)
    return {name: found[name] / truth[name] for name in truth}


def test_altered_constants_are_found_again():
    ratios = found_again(QUICK)
    assert all(ratio == pytest.approx(1, rel=0.05) for ratio in ratios.values()), ratios


@pytest.mark.slow
def test_altered_bandwidths_are_found_again():
    """Of a chip whose L2 keeps up with its DRAM; a slower one hides what DRAM could do."""
    probes = [probe for probe in PROBES if probe.constant in BANDWIDTHS]
    ratios = found_again(probes, factors=(1.25, 0.8))
    assert all(ratio == pytest.approx(1, rel=0.05) for ratio in ratios.values()), ratios


def test_a_probe_that_does_not_hear_its_constant_says_so():
    """No constant is made up for a probe whose prediction does not move with it."""
    from dataclasses import replace

    deaf = replace(QUICK[0], constant="tmem_alloc")
    (result,) = fit({deaf.name: 2 * deaf.measure(Clock())}, [deaf])
    assert result.fitted is None and as_constants([result]) == {}


def test_probes_of_tcgen05_are_left_out_elsewhere():
    clock = Clock()
    clock.target = "sm_90a"
    assert {p.constant for p in PROBES if not p.runs_on(clock)} == {
        p.constant for p in PROBES if p.tcgen05
    }


def test_the_command_writes_constants_that_the_clock_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "measure", lambda device: measure(device, QUICK[:2]))
    monkeypatch.setattr(command, "fit", lambda measured, chip: fit(measured, QUICK[:2], chip))
    out, every = tmp_path / "constants.json", tmp_path / "probes.json"
    chip = ["--set", "smem_load=35"]
    arguments = ["--device", "emulator", *chip, "--out", str(out), "--probes", str(every)]
    assert command.main(arguments) == 0
    assert "modelled" in capsys.readouterr().out
    assert read_file(out)["smem_load"] == pytest.approx(35, rel=0.05)
    assert {p["constant"] for p in json.loads(every.read_text())["probes"]} == {
        "smem_load",
        "bar_base",
    }


@pytest.mark.parametrize(
    "pairs, said",
    [
        (["dsmem"], "NAME=VALUE, not 'dsmem'"),
        (["warp_speed=9"], "'warp_speed' is not a constant of the clock"),
        (["dsmem=fast"], "dsmem should be a number, not 'fast'"),
    ],
)
def test_wrong_constants_are_named(pairs, said):
    with pytest.raises(ValueError, match=said):
        read_overrides(pairs)


@pytest.mark.parametrize("text", ["", "[1]", '{"dsmem": "x"}', '{"no": 1}'])
def test_wrong_files_of_constants_are_named(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        read_file(path)
    with pytest.raises(ValueError, match="missing.json is not a file of constants"):
        read_file(tmp_path / "missing.json")
