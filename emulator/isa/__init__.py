"""The instructions, a file for each unit. Importing this package registers all of them."""

import importlib
import pkgutil

INLINE_NAMES: dict[str, object] = {}

for _module in pkgutil.iter_modules(__path__):
    _loaded = importlib.import_module(f"{__name__}.{_module.name}")
    INLINE_NAMES.update(getattr(_loaded, "INLINE_NAMES", {}))
