"""Load pipelines of packed kernels by the clock of an H200.

    python -m lab h200_model packs/*.npz [--measured FILE] [--out FILE] [--jobs N]
                                [--set NAME=VALUE]
    python -m lab h200_model packs/*.npz --epilogues

The programs are those that `python -m hopper.pipeline` measures: rewritten for Hopper, with
tcgen05 left out. Modelled microseconds a call, back to back on cold inputs; with the results of
that command beside them, and the errors. Programs whose loads signal the other CTA of a pair are
left out: Hopper cannot do that, and what stands for it says nothing of a B200. With --epilogues
the programs are those that `python -m hopper pipeline` holds against each other, pairs, too.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import hopper
from b200 import records
from b200.command_line import Parser, writable
from harness import digest
from harness.qualify.h200_clock import Modelled, model
from hopper import h200
from lab.tables import markdown


def table(results: list[Modelled], measured: dict[str, float]) -> str:
    rows, errors = [], []
    for r in results:
        real, error = measured.get(r.pack), r.message
        if r.us is not None:
            errors += [r.us / real - 1] if real else []
            error = f"{errors[-1]:+.1%}" if real else ""
        us, real = ("-" if us is None else f"{us:.2f}" for us in (r.us, real))
        rows.append((r.pack, us, real, error))
    text = markdown.table(("kernel", "modelled us", "measured us", "error"), rows)
    if errors:
        off = [abs(e) for e in errors]
        text += (
            f"\n\n{len(off)} kernels: mean error {statistics.mean(off):.1%}, worst {max(off):.1%}, "
            f"mean of modelled over measured {1 + statistics.mean(errors):.2f}"
        )
    return text


def main(argv: Sequence[str]) -> int:
    parser = Parser("python -m lab h200_model", (__doc__ or "").splitlines()[0])
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK.npz", help="packs to model")
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="compare with what `b200 pipeline --out` wrote on an H200",
    )
    parser.add_argument("--out", type=writable, metavar="FILE", help="write the times as JSON")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="packs at a time")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a constant of the clock; repeatable",
    )
    parser.add_argument(
        "--epilogues",
        action="store_true",
        help="model loads and epilogue, as `hopper pipeline` does",
    )
    options = parser.parse_args(argv)
    constants = {n: float(v) for n, v in (pair.split("=") for pair in options.set)}
    measured = {}
    if options.measured:
        found = json.loads(options.measured.read_text())["measured"]
        measured = {m["pack"]: m["us"] for m in found}
    with ProcessPoolExecutor(options.jobs) as pool:
        modelled = functools.partial(model, constants=constants, epilogues=options.epilogues)
        results = list(pool.map(modelled, options.packs))
    print(f"modelled on an H200\n{table(results, measured)}")
    if options.out:
        by = digest.made_by(constants) | {"h200": digest.of_file(h200.TABLE)}
        by["hopper"] = digest.of_folder(Path(hopper.__file__).parent)
        written = {"made_by": by, "constants": constants}
        records.write(options.out, written | {"modelled": [asdict(r) for r in results]})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
