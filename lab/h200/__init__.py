"""Rigs on an H200 that feed the clock's constants: `python -m lab h200 NAME [--out FILE]`.

What they wrote is docs/results/h200-NAME.json; a constant's source names its rig (b200/clock).
"""
