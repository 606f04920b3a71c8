"""`eval.py ladder`: modelled against published times of many versions of a kernel."""
