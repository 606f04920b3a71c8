"""What happens in the process of a case: load the submission, make inputs, run, check, time.

`worker` is entered, and calls the module of `modes/` that the job names. These share `loading` (the
submission and its inputs), `checks` and `timing` (a kernel is right; how long it takes), `emulated`
and `on_hopper` (the same without a B200), `findings` (what the checker found) and `failures` (what
was raised, in words).
"""
