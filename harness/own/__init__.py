"""A problem of the user's own for eval.py: inputs and a reference function in a file.

problem.py    the file, its cases, and whether outputs are right
modes.py      what a case does: test, diff, benchmark, leaderboard, profile
explain.py    where outputs differ, and what reproduces them
mistakes.py   what a kernel may have done: to inputs and to outputs of any problem
"""
