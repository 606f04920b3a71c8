"""The loop that takes over other packages, and what happens where a name of theirs is gone.

A feature (features.py) stands on names of torch, the CuTe DSL or cuda-python, some of them private.
Where a version has one no more, that feature is refused where a program comes to it, in one line
with the name. All others work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from b200.errors import EmulatorError

_PACKAGES = {"cutlass": "nvidia-cutlass-dsl", "cuda": "cuda-bindings"}  # a module's first name
# Functions of torch.cuda that torch calls where nothing is on cuda.
_NO_USE = re.compile(r"_.*|is_.*|device_count|manual_seed.*")


@dataclass(frozen=True)
class Feature:
    """Something that programs use, and what it stands on.

    patch: "module:function" of b200.host, which puts it in place; it takes the Runtime, of features
    of cuda-python the Modules. names: what it needs of another
    package, as "module:Name.attribute"; one of several where "|" stands between. entries: where a
    program comes to it, which refuse where a name is gone; "module:*" are its functions. means:
    they refuse only calls with such a word, or a device of this type, among the arguments.
    real_gpu: it is in place, too, where a GPU of this machine runs the launches. optional: it makes
    things faster or words better, and nobody asks for it.
    """

    what: str
    patch: str
    names: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    means: str = ""
    real_gpu: bool = False
    optional: bool = False


def take_over(features: Sequence[Feature], given: Any) -> None:
    """Put features in place, each by its patch, which is called with `given`."""
    for feature in features:
        reason = missing(feature)
        if not reason:
            try:
                _function(feature.patch)(given)
            except (AttributeError, ImportError, TypeError) as error:
                reason = f"{feature.what}: {type(error).__name__}: {error}"
        if reason:
            for entry in feature.entries:
                _refuse(entry, reason, feature.means)


def missing(feature: Feature) -> str:
    """Which name that the feature needs is gone, in a line; "" if none is."""
    for alternatives in feature.names:
        if not any(is_there(name) for name in alternatives.split("|")):
            gone = alternatives.split("|")[0]
            return f"{feature.what}: {_package_of(gone)} has no {gone.replace(':', '.')}"
    return ""


def is_there(name: str) -> bool:
    try:
        module, _, path = name.partition(":")
        functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put `make(original)` in the place of a function, method or class method. Of a class method
    the original takes the class first, whether it is written in Python or in C.
    """
    static = inspect.getattr_static(owner, name)
    if isinstance(static, (classmethod, types.ClassMethodDescriptorType)):
        new = make(lambda cls, *args, **kwargs: static.__get__(None, cls)(*args, **kwargs))
        setattr(owner, name, classmethod(new))
    else:
        setattr(owner, name, make(getattr(owner, name)))


def _function(name: str) -> Callable[[Any], None]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(f"b200.host.{module}"), function)


def _package_of(name: str) -> str:
    first = name.partition(":")[0].partition(".")[0]
    package = _PACKAGES.get(first, first)
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package}, which is not installed,"


def _refuse(entry: str, reason: str, word: str) -> None:
    """Make the functions of an entry raise EmulatorError, if they are there."""

    def refusing(original: Callable) -> Callable:
        @functools.wraps(original, updated=())
        def refuse(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            if not word or any(_means(value, word) for value in given):
                raise EmulatorError("unsupported", reason)
            return original(*args, **kwargs)

        return refuse

    for owner, name in _owners(entry):
        replace(owner, name, refusing)


def _owners(entry: str) -> Iterator[tuple[Any, str]]:
    """Where the functions of an entry stand, and their names there."""
    module, _, path = entry.partition(":")
    *parts, name = path.split(".")
    try:
        owner = functools.reduce(getattr, parts, importlib.import_module(module))
    except (ImportError, AttributeError):
        return
    names = [name]
    if name == "*":
        ours = {k for k, v in vars(owner).items() if _is_function_of(v, module)}
        names = sorted(name for name in ours if not _NO_USE.fullmatch(name))
    yield from ((owner, name) for name in names if hasattr(owner, name))


def _is_function_of(value: Any, module: str) -> bool:
    if isinstance(value, type) or not callable(value):
        return False
    return (getattr(value, "__module__", None) or "").startswith(module)


def _means(value: Any, word: str) -> bool:
    """Whether an argument has a word in it, or is on or names a device of that type."""
    if isinstance(value, str):
        return word in value.lower()
    return getattr(getattr(value, "device", value), "type", "") == word
