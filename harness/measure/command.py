"""`eval.py measure`: probes on a device, the constants they tell, and a file of these."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from b200 import records
from b200.clock.overrides import read_overrides
from b200.command_line import Parser, writable
from harness.measure.devices import Clock, Cuda, Device
from harness.measure.fit import Fitted, as_constants, fit, measure
from hopper.errors import HopperError


def device_of(name: str, constants: dict[str, float]) -> Device:
    """The device of a name; `constants` are those of the chip that the emulator plays."""
    return Clock(constants) if name == "emulator" else Cuda()


def table(fitted: list[Fitted]) -> str:
    """A line a probe: what the chip gave, the clock before and after, the constant."""
    lines = [
        f"{'probe':36} {'measured':>10} {'clock':>10} {'fitted':>10} unit   "
        f"{'constant':18} {'table':>10} {'found':>10}"
    ]
    for f in fitted:
        found = "none fits" if f.fitted is None else f"{f.fitted:.5g}"
        lines.append(
            f"{f.probe:36} {f.measured:10.2f} {f.before:10.2f} {f.after:10.2f} {f.unit:6} "
            f"{f.constant:18} {f.table:10.5g} {found:>10}"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = Parser("eval.py measure", __doc__)
    parser.add_argument(
        "--device", choices=("cuda", "emulator"), required=True, help="what is measured"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="emulator: measure a chip with another value of this constant; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a probe, no table")
    parser.add_argument(
        "--out", type=writable, metavar="FILE", help="write the constants that were found"
    )
    parser.add_argument(
        "--probes", type=writable, metavar="FILE", help="write what each probe measured"
    )
    options = parser.parse_args(argv)
    try:
        chip = read_overrides(options.set)
        device = device_of(options.device, chip)
        fitted = fit(measure(device), chip=device.chip)
    except (ValueError, HopperError) as error:
        print(f"eval.py measure: {error}", file=sys.stderr)
        return 2
    if options.json:
        print("\n".join(json.dumps(asdict(f)) for f in fitted))
    else:
        print(f"probes on {device.label}; the clock's values are modelled\n{table(fitted)}")
    if options.out:
        options.out.write_text(json.dumps(as_constants(fitted), indent=1) + "\n")
    if options.probes:
        written = {"device": device.label, "probes": [asdict(f) for f in fitted]}
        records.write(options.probes, written)
    return 0
