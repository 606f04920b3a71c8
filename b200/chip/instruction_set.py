"""The instruction set: importing this module registers every unit in `b200.registry.TABLE`."""

import importlib
import pkgutil

from b200.chip import alu, copies, memory, sync, tensor

GROUPS = (alu, memory, copies, tensor, sync)

for _group in GROUPS:
    for _module in pkgutil.iter_modules(_group.__path__):
        importlib.import_module(f"{_group.__name__}.{_module.name}")
