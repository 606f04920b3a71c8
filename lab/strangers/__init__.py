"""Kernels of other projects, timed by them on a B200, run as they are on the software one.

published.csv   the times, with their source
rows.py         a row of it, and its kind
tirx.py         the compiler of that project's own kernels
harness.py      the project whose benchmark knows each kernel's shapes and arguments
schedules.py    an input of sglang's kernel that another project makes
fills.py        what torch itself runs in a timed call
parts.py        on how much of the chip it runs
one.py          one row, in a process of its own
study.py        the command, and the file of what came out
"""
