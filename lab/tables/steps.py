"""The table of docs/first-kernel.md: its template, the steps to a faster kernel, and ours."""

from __future__ import annotations

from lab.tables import markdown

CHANGES = {
    "gemm_mended.py": "the template: two stages",
    "gemm_1.py": "six stages",
    "gemm_2.py": "a and b exchanged",
    "gemm_3.py": "tiles 64 wide, eight stages",
    "gemm_fast.py": "calls overlap",
    "submission.py": "ours",
}


def steps(records: list[dict]) -> str:
    """A row a file, in the order of CHANGES; records are those of `eval.py compare --json`, ours
    first.
    """
    by_file = {record["submission"]: record for record in records}
    columns = {
        "file": "`{submission}`",
        "what it is": lambda r: CHANGES[r["submission"]],
        "modelled us": "{time_us:.2f}",
        "of submission.py": lambda r: f"{r['time_us'] / records[0]['time_us']:.2f}",
        "bound by": "{bound_by}",
    }
    return markdown.filled(columns, map(by_file.__getitem__, CHANGES))
