"""Litmus programs: PTX's memory model by its axioms, held against what the checker says."""
