"""CUDA's headers by the table: `python -m lab headers [--only REGEX] [--out FILE]`.

A program for every function of cuda_fp16, cuda_bf16, cuda_fp8, cuda_fp6, cuda_fp4, of CUDA's math
and intrinsics, cooperative_groups, cuda::barrier, cuda::pipeline, cuda::atomic_ref, and of cub's
warps and blocks: compiled by nvcc, run in the emulator, its words held against the header's host
path, exact rationals, long double or mpmath with documented bounds, or what a program by hand must
leave. --only: functions whose signature matches. Ends with 1 where a word is wrong.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from b200 import records
from b200.command_line import Parser
from harness import digest
from lab.headers import build, study
from lab.headers.groups import PROGRAMS


def main() -> int:
    parser = Parser(prog="python -m lab headers", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="functions whose signature matches"
    )
    parser.add_argument("--nvcc", default="nvcc", metavar="PATH", help="of CUDA 13.0 (nvcc)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args()
    nvcc = shutil.which(options.nvcc)
    if nvcc is None:
        parser.error(f"argument --nvcc: there is no {options.nvcc}")
    programs = [p for p in PROGRAMS if any(re.search(options.only, f) for f in p.functions)]
    with tempfile.TemporaryDirectory() as folder:
        chosen = study.functions(build.include_folder(Path(nvcc)), options.only)
        tried = study.declared(Path(nvcc), Path(folder), chosen)
        rows = study.merged(tried, study.by_hand(Path(nvcc), Path(folder), programs))
    for row in rows:
        if row.verdict in ("wrong", "refused"):
            print(f"{row.verdict:8} {row.page}: {row.name}: {row.said}")
    print(
        *(f"{count} {verdict}" for verdict, count in Counter(r.verdict for r in rows).items()),
        sep=", ",
    )
    if options.out:
        record = {
            "made_by": digest.made_by(parts=("program", "chip")),
            "nvcc": build.version(Path(nvcc)),
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        options.out.write_text(records.text(record))
    return 1 if any(row.verdict == "wrong" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
