"""Kernels with one planted bug each, and their corrected twins."""
