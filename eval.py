"""Is the kernel right, and how fast is it? On a B200 it is measured; elsewhere it runs in a
software B200, or on a Hopper GPU with only the tensor core in software.

    python eval.py test --quick                      two small cases of each problem, a minute
    python eval.py test                              the official test cases of all four problems
    python eval.py test gemv group --random 12       random legal shapes of two of them
    python eval.py benchmark nvfp4_gemm              the benchmark cases of one
    python eval.py diff gemm --case "m: 128; n: 256; k: 256; l: 1"    where the result differs
    python eval.py test --problem MY.py              a problem of one's own (docs/own-problem.md)
    python eval.py profile gemm --case "m: 128; n: 256; k: 256; l: 1"
    python eval.py leaderboard cases.txt             as the leaderboards' runner calls it, which
                                                     sets POPCORN_FD
    python eval.py tune gemm -n 6                    the next best configurations against the pick
    python eval.py qualify                           everything this machine can tell, in a report
    python eval.py measure --device cuda             the clock's constants, measured on this GPU
    python eval.py compare A.py B.py gemm            submissions side by side
    python eval.py ladder TIMES.csv FOLDER --out F  modelled against published times of versions
    python eval.py official FOLDER test              an organiser's problem folder in its own way
    python eval.py lint FILE                         would the boards' upload and runner take it?

Exit status: 0 all right, 2 bad arguments or set-up, 110 CUDA error, 111 no pipe, 112 wrong result,
error or refused, 113 bad case file of the runner, 114 timeout, 120 output cannot be written, 130
interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence

from harness.evaluator import dependencies

# Objects that the collector waits for. What is imported and compiled makes a million, which stay;
# to go over them at each 700 is a tenth of a short command.
COLLECTED_AT = (100_000, 50, 100)
COMMANDS = {  # with arguments of their own
    "compare": "harness.evaluator.compare.command",
    "ladder": "harness.evaluator.ladder.command",
    "lint": "harness.lint.command",
    "measure": "harness.measure.command",
    "official": "harness.evaluator.official",
    "--official": "harness.evaluator.official",
    "qualify": "harness.qualify.run",
}


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    if missing := dependencies.missing():
        print(f"eval.py: {missing}", file=sys.stderr)
        return 2
    from b200.command_line import told

    if argv and argv[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[argv[0]])
        return told("eval.py", lambda: module.main(list(argv[1:])))
    from harness.evaluator import command

    return told("eval.py", lambda: command.main(argv, __doc__))


if __name__ == "__main__":
    gc.set_threshold(*COLLECTED_AT)
    status = main(sys.argv[1:])
    gc.freeze()  # as Python ends, the collector goes over all that is not apart: half a second
    sys.exit(status)
