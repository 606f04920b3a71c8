"""Python programs that `subprocess` starts with an environment of their own, or without one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_OURS = "B200_"  # names of variables that say what the run is
_PLACE = 9  # of `env` behind the first argument of Popen
# Python's options of one letter: that leave the environment out; behind which the program stands;
# that take a word, the rest of theirs or the next one.
_ISOLATE, _ENDS, _TAKES = "IES", "cm", "WX"


def watch(follow: Callable[[dict[str, str]], None]) -> None:
    """From now on an environment that this process gives a program has ours, too. follow: puts our
    folder into one. Who does not look at it is named.
    """
    begin = subprocess.Popen.__init__
    if hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def start(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        if option := isolated(args):
            said = f"a Python program that is started with {option} is not in the software B200"
            print(f"b200: {said}: it looks at no PYTHONPATH", file=sys.stderr, flush=True)
        if len(rest) > _PLACE and rest[_PLACE] is not None:
            rest = (*rest[:_PLACE], _ours(rest[_PLACE], follow), *rest[_PLACE + 1 :])
        elif named.get("env") is not None:
            named["env"] = _ours(named["env"], follow)
        begin(self, args, *rest, **named)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def _ours(env: Mapping[Any, Any], follow: Callable[[dict[str, str]], None]) -> Mapping[Any, Any]:
    """An environment with what a Python program needs to find the B200."""
    if any(not isinstance(name, str) for name in env):
        return env  # of bytes
    found = {name: value for name, value in os.environ.items() if name.startswith(_OURS)} | {**env}
    follow(found)
    return found


def isolated(args: Any) -> str:
    """The option by which a Python program looks at no environment; "" for one that does, or for
    another program.
    """
    if not isinstance(args, Sequence) or isinstance(args, str | bytes) or not args:
        return ""
    program, *words = map(os.fsdecode, cast("Sequence[Any]", args))
    if not Path(program).name.startswith("python"):
        return ""
    following = iter(words)
    for word in following:
        if not word.startswith("-") or word.startswith("--"):
            return ""
        letter = next((letter for letter in word[1:] if letter in _ISOLATE + _ENDS + _TAKES), "")
        if letter and letter in _ISOLATE:
            return word
        if letter and letter in _ENDS:
            return ""
        if letter and word.endswith(letter):
            next(following, None)
    return ""
