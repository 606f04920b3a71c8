"""Launches of the kernel in files, to be run and timed on a Hopper GPU: `python -m lab packs`."""
