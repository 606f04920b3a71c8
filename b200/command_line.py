"""What all commands do alike: wrong arguments are told in a line, before anything runs, and so is
output that cannot be written.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

USAGE = 2  # exit status: bad arguments or set-up
UNWRITTEN = 120  # output cannot be written; Python's own, where stdout cannot be flushed
PROGRAMS = ("-m", "--", "-")  # what stands where a program begins, and looks like an option
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments; takes no part of an option for it."""

    def __init__(
        self,
        prog: str,
        description: str | None = None,
        error: Callable[[str], Exception] | None = None,
    ):
        """error: makes what is raised in place of the line and an exit."""
        raw = argparse.RawDescriptionHelpFormatter
        self._error = error
        self._with_value: set[str] = set()
        super().__init__(prog, description=description, formatter_class=raw, allow_abbrev=False)

    def add_argument(self, *names: Any, **how: Any) -> argparse.Action:
        action = super().add_argument(*names, **how)
        if action.nargs is None:
            self._with_value.update(action.option_strings)
        return action

    def error(self, message: str) -> NoReturn:
        if self._error:
            raise self._error(message)
        self.exit(USAGE, f"{self.prog}: {message}\n")

    def parse_own(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options that stand before a program, and the program with all that stands behind it,
        which is its own whatever it looks like. A `--` may stand before the program.
        """
        at = 0
        while at < len(argv) and argv[at].startswith("-") and argv[at] not in PROGRAMS:
            at += 2 if argv[at] in self._with_value else 1
        behind = list(argv[at:])
        return self.parse_args(argv[:at]), behind[1:] if behind[:1] == ["--"] else behind


def unwritable(path: Path) -> str:
    """Why a file cannot be written at this path, "" if it can. Tries it; leaves what is there."""
    if path.is_dir():
        return f"{path} is a folder"
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if path.exists() and not path.is_file():  # a device or a pipe, which opening may change
        return "" if os.access(path, os.W_OK) else f"{path} cannot be written"
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        return cannot_write(path, error)
    return ""


def cannot_write(path: Path, error: OSError) -> str:
    """A line on a file that could not be written."""
    return f"{path} cannot be written: {error.strerror or error}"


def folder(text: str) -> Path:
    """The type of an argument that names a folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)


def writable(text: str) -> Path:
    """The type of an option that names a file to write."""
    if why := unwritable(Path(text)):
        raise argparse.ArgumentTypeError(why)
    return Path(text)


def writable_folder(text: str) -> Path:
    """The type of an option that names a folder to write to, which is made where it is not."""
    path, parent = Path(text), Path(text).absolute().parent
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is no folder")
    if not (path.is_dir() or parent.is_dir()):
        raise argparse.ArgumentTypeError(f"there is no folder {parent}")
    if not os.access(path if path.is_dir() else parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def undecodable(path: Path) -> str:
    """Why Python cannot read a source file, "" if it can: a byte that is not of its encoding, where
    `python FILE` says so, too, but `compile` and `inspect` do not.
    """
    data, encoding, otherwise = path.read_bytes(), "utf-8", ""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:  # a declaration of what is no encoding, or a byte in two lines
        otherwise = f"{path}: {error}"
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line, byte = 1 + data[: error.start].count(b"\n"), data[error.start]
        return (
            f"{path}:{line}: byte {byte:#04x} is not {encoding}; save the file as UTF-8, or name"
            " its encoding in line 1: # -*- coding: latin-1 -*-"
        )
    return otherwise


def no_program(path: Path) -> str:
    """Why a file is no Python program, "" if it may be one. One that ends in .py says so itself."""
    data = path.read_bytes()
    if data.startswith(b"\x7fELF"):
        return (
            f"{path} is a compiled program: b200 exec runs it; b200 run takes source, as FILE.cu"
            " with a main"
        )
    if path.suffix == ".ptx":
        return f"{path} is PTX: b200.run_ptx runs a kernel of it, with its arguments"
    if path.suffix == ".py":
        return undecodable(path)
    if wrong := undecodable(path):
        return f"{path} is no program: {wrong.removeprefix(f'{path}:')}"
    try:
        compile(data, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        said = getattr(error, "msg", None) or error
        return (
            f"{path} is no program: it is not Python (line {line}: {said}), and CUDA programs end"
            " in .cu, .cpp or .cc"
        )
    return ""


Commands = Mapping[str, Callable[[Sequence[str]], int]]


def dispatch(name: str, commands: Commands, argv: Sequence[str], about: str) -> int:
    """Run the command that the first argument names; its exit status. name: of the program. about:
    what --help prints.
    """
    asked = argv[0] if argv else ""
    if asked in commands:
        return commands[asked](argv[1:])
    if asked in ("-h", "--help"):
        print(about)
        return 0
    print(f"{name}: {_no_command(name, asked, commands)}", file=sys.stderr)
    return USAGE


def _no_command(name: str, asked: str, commands: Iterable[str]) -> str:
    """A line on an argument that names no command of a program."""
    known = f"the commands are {', '.join(commands)}; see --help"
    if not asked:
        return f"a command is missing: {known}"
    if near := difflib.get_close_matches(asked, commands, 1):
        return f"no command is called {asked}: did you mean {near[0]}? {known}"
    if Path(asked).is_file():
        return f"no command is called {asked}: to run it, {name} run {asked}"
    return f"no command is called {asked}: {known}"


def told(name: str, command: Callable[[], int]) -> int:
    """The exit status of a command, its output written; a line instead of a traceback where there
    is no room for that.
    """
    try:
        status = command()
        sys.stdout.flush()
        return status
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in its buffer goes there
        print(f"{name}: the output cannot be written: {error.strerror}", file=sys.stderr)
        return UNWRITTEN
