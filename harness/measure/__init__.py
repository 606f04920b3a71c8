"""The clock's constants measured on a chip.

probes.py has the micro-kernels, published.py those that do what a published benchmark did,
devices.py what runs them, fit.py the constants that make the clock agree with what was measured.

    python eval.py measure --device cuda --out constants.json     on a B200
    python eval.py measure --device emulator --set dsmem=240      the clock plays an unknown chip
"""
