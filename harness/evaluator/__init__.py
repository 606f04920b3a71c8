"""One way from the arguments of eval.py to its report: which cases, on which device, each in a
process of its own, what became of it.
"""
