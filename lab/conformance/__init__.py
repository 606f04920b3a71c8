"""The instruction table beside ptxas: `python -m lab conformance`."""
