"""`eval.py qualify`: what one machine can tell of the kernel and the clock, in one command.

plan.py says which commands are run, state.py keeps what each gave, run.py runs them one after the
other under a watchdog, summary.py says what is wrong, page.py writes the report. The parts are
commands of their own (`eval.py test`, `benchmark`, `tune`, `measure`), read through --json, so
a crash or a hang ends one of them and not the report.
"""
