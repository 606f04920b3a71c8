"""Module-scope `.global` and `.const` variables: host memory that lives as long as the process."""

from __future__ import annotations

import ctypes

from b200.chip.global_memory import GlobalMemory
from b200.program.module import Program


class ModuleVariables:
    """Places the variables of each module once; two modules may use the same names."""

    def __init__(self):
        self._placed: dict[int, tuple[Program, dict[str, int], list]] = {}

    def place(self, program: Program, memory: GlobalMemory) -> dict[str, int]:
        """Make a module's variables legal global memory; returns name -> address, of its functions,
        too, which is no address of memory.
        """
        if id(program) not in self._placed:
            self._placed[id(program)] = (program, *self._allocate(program))
        _, addresses, _ = self._placed[id(program)]
        for name, address in addresses.items():
            if (variable := program.variables.get(name)) is None:
                continue
            constant = variable.space == "const"
            memory.register(address, max(variable.size, 1), f"variable {name}", constant=constant)
        return addresses

    @staticmethod
    def _allocate(program: Program) -> tuple[dict[str, int], list]:
        addresses, buffers = {}, []
        for variable in program.variables.values():
            if variable.space in ("global", "const"):
                align = max(variable.align, 16)
                buffer = ctypes.create_string_buffer(max(variable.size, 1) + align)
                address = -(-ctypes.addressof(buffer) // align) * align
                ctypes.memmove(address, variable.init or b"", len(variable.init or b""))
                addresses[variable.name] = address
                buffers.append(buffer)
        functions = {name: 16 * (i + 1) for i, name in enumerate(program.functions)}
        for variable in program.variables.values():
            for pointer in variable.pointers if variable.name in addresses else ():
                target = addresses.get(pointer.name)
                if target is None:
                    target = functions.setdefault(pointer.name, 16 * (len(functions) + 1))
                value = pointer.value(target)
                ctypes.memmove(addresses[variable.name] + pointer.at, value, len(value))
        return functions | addresses, buffers
