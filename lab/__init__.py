"""The laboratory: what makes the numbers that README and docs quote. `python -m lab` lists it.

boards/        times that a leaderboard or a profiler gave, beside the modelled ones
calibrations/  the clock beside published tables of a B200
code/          the machine code that the kernel compiles to
corpus.py      public programs, run as they are
emulation/     how fast the emulator is, of two source trees
evidence/      what the kernel takes for granted, and who has relied on it
h200/          rigs on an H200 that feed the clock's constants, and its model
host_path.py   what a call of the kernel costs on the host
mutations/     mutations of the kernel's PTX: how many are caught
packs/         the kernel's launches in files, for a Hopper GPU
results/       the files of docs/results: what made them, made again
tables/        the generated tables of README and docs, their picture and their prose
tuning/        which configuration is fast
kernel_cases.py  configurations of the kernel with problems that use them
"""
