"""The errors of CUDA: a cudaError_t and CUresult, their names, and CUDA's words.

Numbers, names of the runtime and words are what cudaGetErrorName and cudaGetErrorString of CUDA
13.0 return; names of the driver are those of cuda.h. "-" stands where one of the two has none.
"""

from __future__ import annotations

from pathlib import Path

_TABLE = Path(__file__).with_suffix(".txt")


def _read() -> dict[int, tuple[str, str, str]]:
    found = {}
    for line in _TABLE.read_text().splitlines()[1:]:
        number, runtime, driver, text = (*line.split(" ", 3), "")[:4]
        names = (name.replace("-", "") for name in (runtime, driver))
        found[int(number)] = (*names, text)
    return found


# number -> (cudaError_t, CUresult, text)
NAMES = _read()
