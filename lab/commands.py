"""The laboratory's commands: `python -m lab NAME [ARGUMENTS]`. They make the numbers that README
and docs quote.

lab/ has no __init__.py: a program that runs with the checkout on its path, and has a lab.py of its
own, finds that.

boards/        times that a leaderboard or a profiler gave, beside the modelled ones
calibrations/  the clock beside published tables of a B200
code/          the machine code that the kernel compiles to
conformance/   the instruction table beside ptxas
corpus.py      public programs, run as they are
emulation/     how fast the emulator is, of two source trees
evidence/      what the kernel takes for granted, and who has relied on it
exact_rounding.py  exact rationals rounded to binary formats
h200/          rigs on an H200 that feed the clock's constants, and its model
headers/       every function of CUDA's headers as a program of its own
kernel_cases.py  configurations of the kernel with problems that use them
limits.py      a limit of CPU time for what a study runs
mutations/     mutations of the kernel's PTX: how many are caught
packs/         the kernel's launches in files, for a Hopper GPU
results/       the files of docs/results: what made them, made again
strangers/     kernels of other projects beside the times that were published of them
suites/        tests of other projects, run as they stand
survey/        what a B200 measures of the candidates, and the table of picks
tables/        the generated tables of README and docs, their picture and their prose
tuning/        which configuration is fast
"""

from __future__ import annotations

COMMANDS = {  # name -> module that is run, and what it says
    "calibrate": ("lab.calibrations", "the clock beside published tables of a B200"),
    "conformance": ("lab.conformance", "the instruction table beside ptxas"),
    "corpus": ("lab.corpus", "public scripts, run as they are: right or wrong"),
    "emulation_speed": ("lab.emulation.speed", "two source trees: CPU s, results"),
    "evidence": ("lab.evidence", "forms of the kernel that nobody has relied on"),
    "figures": ("lab.tables.figures", "the generated tables of README and docs"),
    "h200": ("lab.h200", "rigs on an H200 that feed the clock's constants"),
    "h200_dependent": ("lab.h200.dependent_model", "launches that overlap by an H200's clock"),
    "h200_model": ("lab.h200.model", "load pipelines of packs by the clock of an H200"),
    "headers": ("lab.headers", "every function of CUDA's headers, its words judged"),
    "kinds": ("lab.emulation.kinds", "CPU time by kind of program, beside Triton's interpreter"),
    "measured": ("lab.boards.measured", "times of a board or profile beside the modelled"),
    "mutations": ("lab.mutations.study", "mutations of the kernel: how many are caught"),
    "packs": ("lab.packs", "the kernel's launches in files, for a Hopper GPU"),
    "picture": ("lab.tables.picture", "the picture of the README"),
    "prose": ("lab.tables.prose", "sentences and cells of README and docs that are too long"),
    "remake": ("lab.results.remake", "files of docs/results that are stale, made again"),
    "sass": ("lab.code.sass", "instructions of the loops over k-tiles, from SASS"),
    "strangers": ("lab.strangers.study", "kernels of others beside their published times"),
    "suites": ("lab.suites.study", "tests of other projects under pytest --b200"),
    "survey": ("lab.survey.make", "survey.py, a paste that tries what could be faster"),
    "tuning": ("lab.tuning.study", "which configuration is fast, modelled"),
    "verify": ("lab.evidence.verify", "what SentryWard says of the kernel's PTX"),
}
