"""`python -m b200 report`: reports of several runs as one, in other formats, against a baseline."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from b200.command_line import UNWRITTEN, Parser
from b200.program.names import from_here
from b200.records import as_object
from b200.reports import choice, document, options, words


def main(argv: Sequence[str]) -> int:
    """The exit status: 1 for a finding that is an error, or for an expected kernel not seen."""
    parser = Parser("b200 report", "Put reports of b200 run and pytest --b200 together.")
    parser.add_argument(
        "reports", type=_report, nargs="+", metavar="FILE.json", help="what --report has written"
    )
    parser.add_argument("--strict", action="store_true", help="remarks count, too")
    options.add_to(parser)
    given = parser.parse_args(list(argv))
    chosen = options.choice_of(given)
    found = document.merged(given.reports, chosen)
    found["status"] = status = int(document.is_bad(found, chosen))
    for finding in found["findings"]:
        print(from_here(finding["text"]))
    for line in words.judged(found):
        print(f"b200 report: {line}", file=sys.stderr)
    outputs = options.outputs_of(given)
    outputs.print_annotations(found)
    unwritten = list(outputs.write(found))
    for line in unwritten:
        print(f"b200 report: {line}", file=sys.stderr)
    if given.write_baseline:
        given.write_baseline.write_text(choice.baseline_of(found["findings"], choice.REASON))
    return status or (UNWRITTEN if unwritten else 0)


def _report(text: str) -> dict[str, Any]:
    """The type of an argument that names a report."""
    try:
        found = json.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} is no report: {error}") from None
    report = as_object(found)
    if report.get("schema") != document.SCHEMA:
        raise argparse.ArgumentTypeError(
            f'{text} is no report: expected "schema": "{document.SCHEMA}"'
        )
    return report
