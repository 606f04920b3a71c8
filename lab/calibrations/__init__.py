"""The clock beside published tables of B200 measurements: `python -m lab calibrate`."""
