"""Where the CuTe DSL writes the PTX that it keeps: a folder for each compilation, removed after it.

Not one for the process: a forked one may end without a word (multiprocessing calls os._exit, a
signal kills), and what is left to its end stays for ever. A program that has asked the DSL for its
PTX (CUTE_DSL_KEEP, CUTE_DSL_DUMP_DIR) gets it where it has asked for it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "b200-ptx-"
LONGEST = 3600  # seconds that no compilation takes
_ATTRIBUTE = "b200_ptx_folder"


def patch(asked: bool) -> None:
    """Put it in place. asked: the program itself keeps its PTX."""
    import cutlass.base_dsl.compiler as compiler
    import cutlass.base_dsl.dsl as dsl

    _remove_what_killed_processes_left()
    if asked:
        return
    apply, clean_up = (
        compiler.CompileOptions.apply_envar_settings,
        dsl.BaseDSL.post_compilation_cleanup,
    )

    def apply_with_folder(self, envar, function_name: str):
        apply(self, envar, function_name)
        kept = self.options[compiler.KeepPTX]
        folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        setattr(self, _ATTRIBUTE, folder)
        for name in ("dump_path", "full_ptx_path"):
            setattr(kept, name, str(Path(folder.name, Path(getattr(kept, name)).name)))

    def clean_up_with_folder(self):
        folder = getattr(self.compile_options, _ATTRIBUTE, None)
        clean_up(self)
        if folder is not None:
            folder.cleanup()

    compiler.CompileOptions.apply_envar_settings = apply_with_folder
    dsl.BaseDSL.post_compilation_cleanup = clean_up_with_folder


def _remove_what_killed_processes_left() -> None:
    """Folders of processes that were killed while they compiled."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > LONGEST:
                shutil.rmtree(folder, ignore_errors=True)
