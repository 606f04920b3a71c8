"""The parts of eval.py: cases, devices, processes, timing, protocol, reports.

Only this package knows both the problems and the emulator.
"""
