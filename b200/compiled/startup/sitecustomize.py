"""In each Python that `b200 exec` starts, directly or not: torch's cuda is the software B200.

Python imports this at its start, as it would the environment's own sitecustomize, which it imports.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _import_the_other():
    here = os.path.dirname(os.path.abspath(__file__))
    places = [place for place in sys.path if os.path.abspath(place) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _begin():
    home = os.environ.get("B200_HOME")
    if home is None:
        return
    sys.path.append(home)
    try:
        from b200.compiled import python_program
    except (ImportError, SyntaxError):  # a Python without numpy, or an older one
        return
    python_program.begin()


_import_the_other()
_begin()
