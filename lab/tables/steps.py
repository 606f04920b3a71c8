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
    ours = records[0]["time_us"]
    by_file = {record["submission"]: record for record in records}
    rows = [
        (
            f"`{name}`",
            change,
            f"{by_file[name]['time_us']:.2f}",
            f"{by_file[name]['time_us'] / ours:.2f}",
            by_file[name]["bound_by"],
        )
        for name, change in CHANGES.items()
    ]
    header = ("file", "what it is", "modelled us", "of submission.py", "bound by")
    return markdown.table(header, rows)
