"""Other packages' modules, patched as soon as the program imports them."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


def when_imported(name: str, then: Then) -> None:
    """Call `then` with a module once the program has imported it. torch's is not imported here: it
    brings setuptools, which takes half a second and refuses a process that has looked for pip.
    """
    module = sys.modules.get(name)  # None, too, where its import is forbidden
    if module is not None:
        then(module)
        return
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
    _WATCH.waiting.setdefault(name, []).append(then)


def if_there(name: str) -> ModuleType | None:
    """A module, imported; None where a version has none of the name."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    return None


class _Watch(MetaPathFinder):
    """Finds modules that are waited for, as the other finders do.

    It stays where it is: a program may look for a module, or fail to import it, before it does. To
    take a finder out would make another thread's import pass over the next one.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}
        self._asking: set[tuple[int, str]] = set()  # threads that ask the others for a module

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        asking = (threading.get_ident(), fullname)
        if fullname not in self.waiting or asking in self._asking:
            return None
        self._asking.add(asking)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.remove(asking)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader, fullname)
        return spec

    def _follow(self, loader: Loader, name: str) -> None:
        """name: as it was asked for; cuda.core gives itself another as it is executed."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for then in self.waiting.get(name, ()):
                then(module)
            self.waiting.pop(name, None)

        loader.exec_module = exec_module


_WATCH = _Watch()
