"""eval.py with shorter waits, for tests of what it says when it has waited."""

from __future__ import annotations

from pathlib import Path

from tests import ROOT

SCRIPT = """
import importlib, runpy, sys

sys.path.insert(0, {root!r})
setattr(importlib.import_module({module!r}), {name!r}, {seconds!r})
runpy.run_path({command!r}, run_name="__main__")
"""


def eval_script(folder: Path, constant: str, seconds: float) -> str:
    """The path of a script that is eval.py, but for a constant, "module.NAME"."""
    module, _, name = constant.rpartition(".")
    command = str(ROOT / "eval.py")
    path = folder / "sooner.py"
    path.write_text(
        SCRIPT.format(root=str(ROOT), module=module, name=name, seconds=seconds, command=command)
    )
    return str(path)
