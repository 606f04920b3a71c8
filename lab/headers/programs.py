"""The text of a kernel for each function, and of the same call on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.headers.declarations import Function, Parameter
from lab.headers.values import ENUMS, TYPES

INCLUDES = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>
"""
# Functions that are about a thread's place or state, or that end it: groups/ has them, or a reason.
NO_VALUE = {
    "__trap": "ends the launch",
    "__brkpt": "stops for a debugger",
    "__exit": "ends the thread",
    "__prof_trigger": "counts for a profiler",
    "__assertfail": "ends the launch",
    "nan": "reads a text",
    "nanf": "reads a text",
    **dict.fromkeys(("__barrier_sync", "__barrier_sync_count", "__syncwarp"), "gives no value"),
    "__nanosleep": "gives no value",
    **dict.fromkeys(
        ("__ballot", "__any", "__all", "ballot", "any", "all"), "ptxas has it below sm_70 only"
    ),
}


@dataclass(frozen=True)
class Call:
    """A function with the role of each parameter: "in", "out" (an address that it writes), "cell"
    (an address in memory that it reads, and may write), "warp" (a number that is the same in a
    warp), "mask" (all lanes).
    """

    function: Function
    roles: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.function.signature

    @property
    def result(self) -> str:
        return self.function.returns


def why_untried(function: Function) -> str:
    """Why no call can be made of a declaration, or ""."""
    if function.name in NO_VALUE:
        return NO_VALUE[function.name]
    for kind in (function.returns, *(p.type for p in function.parameters)):
        if kind not in TYPES and kind not in ENUMS and kind != "void":
            return f"{kind} is no type of a value"
    if not function.parameters:
        return "takes no value"
    return ""


def call_of(function: Function) -> Call:
    return Call(function, tuple(_role(function, p) for p in function.parameters))


def _role(function: Function, parameter: Parameter) -> str:
    warp = function.name.endswith("_sync") or "shfl" in function.name
    if parameter.pointer:
        memory = function.name.startswith(("atomic", "__ld", "__st", "norm", "rnorm"))
        return "cell" if memory else "out"
    if warp and parameter.name == "mask":
        return "mask"
    if warp and parameter.name in ("delta", "laneMask", "width", "srcLane"):
        return "warp"
    if function.name.startswith("operator") and function.name[8:] in ASSIGNING:
        return "cell" if parameter is function.parameters[0] else "in"
    return "in"


ASSIGNING = ("=", "+=", "-=", "*=", "/=", "++", "--")


def _expression(call: Call, arguments: Sequence[str]) -> str:
    function = call.function
    if function.kind == "conversion":
        return f"static_cast<{function.returns}>({arguments[0]})"
    if function.kind == "constructor":
        return f"{function.returns}({', '.join(arguments)})"
    if function.name == "operator=":
        return " = ".join(arguments)
    return f"{function.name}({', '.join(arguments)})"


def _body(call: Call) -> str:
    arguments, before, after = [], [], []
    for n, (parameter, role) in enumerate(zip(call.function.parameters, call.roles, strict=True)):
        if role == "mask":
            arguments.append("0xffffffffu")
        elif role == "out":
            before.append(f"{parameter.type} q{n};")
            arguments.append(f"&q{n}")
            after.append(f"p{n}[i] = q{n};")
        elif role == "cell":
            arguments.append(f"p{n} + i" if parameter.pointer else f"p{n}[i]")
        elif parameter.type in ENUMS:
            arguments.append(f"({parameter.type})p{n}[i]")
        else:
            arguments.append(f"p{n}[i]")
    called = _expression(call, arguments)
    store = f"{called};" if call.result == "void" else f"r[i] = {called};"
    return " ".join((*before, store, *after))


def _parameters(call: Call) -> str:
    """Of the kernel: an array for each parameter, then the results."""
    found = []
    for n, (parameter, role) in enumerate(zip(call.function.parameters, call.roles, strict=True)):
        kind = "int" if parameter.type in ENUMS else parameter.type
        if role != "mask":
            found.append(f"{'const ' if role in ('in', 'warp') else ''}{kind}* p{n}")
    return ", ".join((*found, *([f"{call.result}* r"] if call.result != "void" else ())))


def device_kernel(call: Call, name: str) -> str:
    return (
        f'extern "C" __global__ void {name}({_parameters(call)}) {{\n'
        f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  {_body(call)}\n}}\n"
    )


def host_function(call: Call, name: str) -> str:
    """The call for `n` values, one after the other."""
    head = ", ".join(filter(None, (_parameters(call), "int n")))
    return (
        f'extern "C" void {name}({head}) {{ for (int i = 0; i < n; i++) {{\n{_body(call)} }} }}\n'
    )
