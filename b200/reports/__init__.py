"""What a run has found, kept so that no way to end loses it, and told in the formats of CI.

journal.py      lines that all processes of a run write, in memory that outlives each of them
recorder.py     in a process that launches: a record of each launch, as it ends
records.py      what a record and a finding of it consist of
rules.py        the rule of a finding, by the page of the checks
choice.py       which findings count: filters, a baseline, kernels that are expected
document.py     the report: one JSON document of all records of a run
sarif.py  words.py    SARIF 2.1.0, lines for people
outputs.py      the files that a report is written to, and GitHub's annotations
"""
