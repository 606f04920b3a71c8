"""The harness of eval.py. Only this package knows both the problems and the emulator.

evaluator/  one way from the arguments of eval.py through a case to its report; compare and ladder
diagnosis/  where a wrong result differs, and which known mistake reproduces it
own/        a problem of the user's own: its file, its cases, what explains a wrong output
lint/       would the boards' upload and runner take a file
qualify/    what one machine can tell of the kernel and the clock
"""
