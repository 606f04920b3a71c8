"""The commands of this package: `python -m harness NAME [ARGUMENTS]`.

A name says what is asked for, not the file that answers, so that files can move. As
`python -m harness.NAME` the commands were called before; that still works, and says the new name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

COMMANDS = {  # name -> module that is run, and what it says
    "choice": ("harness.studies.choice", "what the first call on a B200 chooses by time"),
    "corpus": ("harness.studies.corpus", "public scripts, run as they are: right or wrong"),
    "emulation_speed": ("harness.studies.emulation_speed", "two source trees: CPU s, results"),
    "evidence": ("harness.studies.evidence", "forms of the kernel that nobody has relied on"),
    "figures": ("harness.tables.figures", "the generated tables of README and docs"),
    "h200": ("harness.studies.h200", "rigs on an H200 that feed the clock's constants"),
    "host_path": ("harness.studies.host_path", "what a call costs on the host"),
    "measured": ("harness.studies.measured", "times of a board or profile beside the modelled"),
    "packs": ("harness.studies.packs", "the leaderboards' cases, for a Hopper GPU elsewhere"),
    "picture": ("harness.tables.picture", "the picture of the README"),
    "prose": ("harness.tables.prose", "sentences of README and docs that are too long"),
    "sass": ("harness.studies.sass", "instructions of the loops over k-tiles, from SASS"),
    "tuning": ("harness.studies.tuning", "which configuration is fast, modelled"),
    "verify": ("harness.studies.evidence.verify", "what SentryWard says of the kernel's PTX"),
}
FORMER = {
    name: name for name in COMMANDS if name not in ("measured", "picture", "prose", "verify")
} | {"evidence.verify": "verify"}


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a command as `python -m` would. KeyError for a name that is none."""
    module, _ = COMMANDS[name]
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_former(name: str) -> None:
    """Run the command that was `python -m harness.NAME`, and say its new name."""
    print(f"python -m harness.{name} is now: python -m harness {FORMER[name]}", file=sys.stderr)
    run(FORMER[name], sys.argv[1:])


class FormerNames(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds `harness.NAME` for `python -m` where NAME is no module any more."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "harness":
            return None
        folder = any(former.startswith(f"{name}.") for former in FORMER)
        if name.removesuffix(".__main__") not in FORMER and not folder:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=folder)

    def get_source(self, fullname: str) -> str:
        name = fullname.removeprefix("harness.").removesuffix(".__main__")
        return f"from harness.commands import run_former\nrun_former({name!r})\n"

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), f"<{fullname}>", "exec")

    def exec_module(self, module: ModuleType) -> None:
        """An import, which only `python -m` needs, of the package around a command."""
        if module.__spec__ is None or module.__spec__.submodule_search_locations is None:
            name = module.__name__.removeprefix("harness.")
            raise ImportError(f"harness.{name} is the command `python -m harness {FORMER[name]}`")
