"""CUDA's headers by the table: each function as a program of its own, its words beside those of an
independent source.

declarations.py  what the headers declare
values.py        C++ types as words, and the inputs that are tried
programs.py      the text of the kernels, and of the same calls on the host
build.py         nvcc for the kernels, the C++ compiler for the host
oracles/         expected words of what has no host path, and documented bounds
domains.py       what a function's documents leave open, and is not asked
judge.py         words beside words
study.py         all of it: a row for each function
groups/          cooperative groups, barriers, pipelines, atomic_ref, cub: programs by hand
"""
