"""Which forms of the kernel have no row in docs/results/evidence.json; which rows are idle.

python -m lab evidence              what is picked, under several cluster tables; a covering set
python -m lab evidence --every N    each N-th official case as it is picked, only
python -m lab evidence --check      the picks that other cluster tables change: are they right?
python -m lab evidence --forms      all forms, in place of those without a row
python -m lab evidence --forms --script FILE ...    of the launches of any script

Exit status 1: a form has no row, or without --every a row is idle, or the rows are wrong; --check:
something is wrong; no kernel was launched, or none was there to check.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import b200
from b200.chip.tensors import set_apart
from b200.command_line import Parser
from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.qualify.submission import Submission
from lab.evidence import rows
from lab.evidence.collect import collect, data_of, other_picks, wanted, wrong
from lab.evidence.watch import Checking, Watching

ROOT = Path(__file__).resolve().parents[2]
NOTHING = "{}: launched no kernel, so there is no form to look at"


def of_script(gpu: Watching, argv: Sequence[str]) -> set[str]:
    """The forms of what a script launches. Its results are wrong: nothing is multiplied."""
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit:
        pass
    except Exception as error:  # such as a comparison of its results
        print(f"{argv[0]}: {error}", file=sys.stderr)
    return gpu.forms


def of_submission(gpu: Watching, path: Path, every: int | None) -> dict[str, str]:
    """The forms of a submission's kernels, each with the first kernel that has it."""
    submission, first = Submission.of(on_gpu(loading.load_kernel(path.resolve()))), {}
    set_apart()
    for told, new in collect(submission, gpu, wanted(submission, every)):
        print(f"{told}: {len(new)} new", file=sys.stderr, flush=True)
        first.update(dict.fromkeys(new, told))
    return first


def of_other_chips(gpu: Checking, path: Path) -> list[str]:
    """What is wrong with the picks that other cluster tables change."""
    submission, found = Submission.of(on_gpu(loading.load_kernel(path.resolve()))), []
    set_apart()
    changed = list(other_picks(submission))
    if not changed:
        return ["no pick changes under another cluster table, so none was checked"]
    for item in changed:
        told = f"{item.case.problem.short} {item.case.text}, {item.why}"
        bad = wrong(submission, gpu, item, data_of(item.case))
        print(f"{told}: {'wrong' if bad else 'right'}", file=sys.stderr, flush=True)
        found += [f"{told}: {line}" for line in bad]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m lab evidence", description=__doc__)
    parser.add_argument(
        "--submission",
        type=Path,
        default=ROOT / "submission.py",
        metavar="FILE",
        help="the file with custom_kernel (default: submission.py)",
    )
    parser.add_argument(
        "--every", type=int, metavar="N", help="look at each N-th official case only"
    )
    parser.add_argument("--forms", action="store_true", help="print all forms")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the picks under other tables of clusters that fit",
    )
    parser.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        help="look at the launches of a script: FILE and its arguments",
    )
    options = parser.parse_args(argv)
    if options.script is not None and not (options.script and options.forms):
        parser.error("--script: expected FILE after it, and --forms before it")
    if options.every is not None and options.every < 1:
        parser.error(f"--every: expected a number from 1 on, found {options.every}")
    if options.check:
        checking = Checking()
        b200.install(check=True, gpu=checking)
        return _say(of_other_chips(checking, options.submission))
    gpu = Watching()
    b200.install(check=False, gpu=gpu)
    if options.script:
        forms = of_script(gpu, options.script)
        return _tell(forms) if forms else _say([NOTHING.format(options.script[0])])
    first = of_submission(gpu, options.submission, options.every)
    if not first:
        return _say([NOTHING.format(options.submission)])
    if options.forms:
        return _tell(first)
    evidence = rows.load()
    found = [f"{form}: no row has it; {first[form]}" for form in rows.missing(evidence, first)]
    found += [] if options.every else [f"{row}: idle" for row in rows.idle(evidence, first)]
    found += rows.wrong(evidence)
    return _say(found)


def _tell(forms: Iterable[str]) -> int:
    print(*sorted(forms), sep="\n")
    return 0


def _say(found: Sequence[str]) -> int:
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
