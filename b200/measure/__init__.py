"""The clock's constants measured on a chip: micro-kernels (probes), what runs them (devices), and
the constants that make the clock agree with what was measured (fit).

    python -m b200 measure --device cuda --out constants.json     on a B200
    python -m b200 measure --device emulator --set dsmem=240      the clock plays an unknown chip
"""
