"""The parts of eval.py: cases, inputs, processes, timing, protocol, report. Only this package knows
both the problems and the emulator."""
