"""Expected words of calls that have no host path, from the documents: Python's integers, exact
rationals, and functions of long double or mpmath with CUDA's bounds.

integers.py  integer intrinsics and the functions on two or four integers of a word
rounded.py   arithmetic and conversions with a rounding mode
halves.py    what cuda_fp16.h and cuda_bf16.h have for the device only
ordered.py   the larger, the smaller, and classes of floats
warp.py      shuffles, votes, matches, reductions of a warp
memory.py    loads, stores, atomics
reals.py     the functions of the CUDA guide's tables of errors
"""

from __future__ import annotations

from lab.headers.judge import Expected, Words
from lab.headers.oracles import halves, integers, memory, ordered, reals, rounded, warp
from lab.headers.programs import Call


def expected(call: Call, given: Words) -> Expected | None:
    """What the documents say of a call; None where no oracle knows the function."""
    if call.result == "void" and not any(role in ("cell", "out") for role in call.roles):
        return None
    for oracle in (integers, rounded, ordered, halves, warp, memory, reals):
        found = oracle.expected(call, given)
        if found is not None:
            return found
    return None
