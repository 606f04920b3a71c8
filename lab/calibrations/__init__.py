"""The clock beside published tables of B200 measurements: `python -m lab calibrate`."""

CALIBRATIONS = ("umma", "tma", "mainloop", "mcast")  # modules of this package, data sets
