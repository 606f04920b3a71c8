"""Helpers of the calibrations: raw PTX kernels that the clock times, published tables, errors.

A calibration fits nothing: the constants stand in b200/clock/constants.toml. It runs kernels that
do what a published microbenchmark did, and reports two errors: on the rows that constants were
chosen on ("fitted", even rows of a table), and on the others ("held out", odd rows).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import struct
from collections.abc import Iterable
from pathlib import Path

import torch

from b200 import records
from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch
from b200.clock import Options, timed_machine
from b200.clock.overrides import read_overrides
from b200.command_line import Parser, folder, writable
from harness import digest


class MissingTable(Exception):
    """A published table that is not in the folder; str() is one line."""


def arguments(name: str, description: str | None) -> Parser:
    parser = Parser(f"python -m lab calibrate {name}", (description or "").partition("\n")[0])
    parser.add_argument("--data", type=folder, required=True, help="where the published tables are")
    parser.add_argument("--all", action="store_true", help="every row, also of the long tables")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--out", type=writable, metavar="FILE", help="also write every row there")
    parser.add_argument(
        "--set",
        type=_constant,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a constant",
    )
    return parser


def _constant(text: str) -> dict[str, float]:
    try:
        return read_overrides([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def overrides(constants: Iterable[dict[str, float]]) -> dict[str, float]:
    """What `--set` has given, as one."""
    return {name: value for each in constants for name, value in each.items()}


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a published table. Raises MissingTable."""
    try:
        with open(path, newline="") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise MissingTable(f"{path} cannot be read: {error.strerror}") from None


def timed_gpu(**options) -> Gpu:
    """A GPU with a clock and no arithmetic."""
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory, Options(**{"arithmetic": False, **options}))
    return gpu


def launch(
    gpu: Gpu,
    text: str,
    params: list[bytes],
    grid: int,
    threads: int,
    cluster: int = 1,
    smem: int = 0,
) -> Launch:
    """Run the kernel of `text`; returns the launch."""
    return gpu.launch(text, "k", (grid, 1, 1), (threads, 1, 1), (cluster, 1, 1), smem, params)


def pointer(tensor: torch.Tensor) -> bytes:
    return struct.pack("<Q", tensor.data_ptr())


def tensormap(tensor: torch.Tensor, width: int, height: int, box: tuple[int, int]) -> bytes:
    """The tensormap (bytes) of a row-major fp32 matrix without swizzle."""
    return TensorMap(tensor.data_ptr(), 7, (width, height), (4 * width,), box, (1, 1)).encode()


class Errors:
    """Relative errors by group and half; `add(group, row index, modelled, measured)`."""

    def __init__(self, unit: str):
        self.unit = unit
        self.rows: list[tuple[str, int, str, float, float]] = []

    def add(self, group: str, index: int, label: str, modelled: float, measured: float) -> None:
        self.rows.append((group, index, label, modelled, measured))

    def print(self, every_row: bool, absolute: bool = False) -> None:
        if every_row:
            for group, index, label, modelled, measured in self.rows:
                half = "fitted  " if index % 2 == 0 else "held out"
                print(
                    f"  {group:28} {half} {label:34} modelled {modelled:10.1f}  measured "
                    f"{measured:10.1f} {self.unit}"
                    f"  {modelled / measured - 1:+7.1%}"
                )
        for group in dict.fromkeys(r[0] for r in self.rows):
            for half, odd in (("fitted", 0), ("held out", 1)):
                rows = [r for r in self.rows if r[0] == group and r[1] % 2 == odd]
                if not rows:
                    continue
                errors = [abs(m / t - 1) for *_, m, t in rows]
                worst = max(rows, key=lambda r: abs(r[3] / r[4] - 1))
                text = (
                    f"{group:28} {half:9} {len(rows):4} rows  mean "
                    f"{statistics.mean(errors):6.1%}  worst {max(errors):6.1%}"
                )
                if absolute:
                    off = max(abs(m - t) for *_, m, t in rows)
                    text += f"  largest difference {off:.1f} {self.unit}"
                print(f"{text}  ({worst[2]})")


def write(path: Path | None, *errors: Errors, dsl: str = "") -> None:
    """The rows of a calibration as JSON, one a line, if `path` is given. dsl: the version of the
    CuTe DSL where that compiled the kernels.
    """
    if path is None:
        return
    keys = ("group", "index", "label", "modelled", "measured", "unit")
    rows = [dict(zip(keys, (*row, e.unit))) for e in errors for row in e.rows]
    made_by = digest.made_by() | ({"dsl": dsl} if dsl else {})
    records.write(path, {"made_by": made_by, "rows": rows})
