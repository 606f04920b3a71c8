"""The machine code that submission.py compiles to."""
