"""What a case does in each mode of eval.py: a module a mode, whose `run(job)` gives the outcome."""
