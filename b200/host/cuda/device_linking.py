"""The registration of device code that was compiled to be linked (`nvcc -rdc=true`).

The host code of each file hands its callback to a function `__cudaRegisterLinkedBinary_ID`, which
nvcc's device linker writes (crt/link.stub). Here these functions collect the fat binaries. The last
one registers all of them as one module, whose PTX the Python side links (program/linking.py).
"""

from __future__ import annotations

import re

_REGISTER = re.compile(r"\b__cudaRegisterLinkedBinary(\w+)")
_HEAD = """#include "backend.h"

using Callback = void (*)(void**);

namespace {
const void* wrappers[COUNT];
Callback callbacks[COUNT];
int found = 0;

void collect(const void* wrapper, Callback callback) {
  wrappers[found] = wrapper;
  callbacks[found] = callback;
  if (++found < COUNT) return;
  auto* handle = new uint64_t(0);
  b200::try_call("register_linked", {b200::word(wrappers), COUNT, b200::word(handle)});
  for (const auto each : callbacks) each(reinterpret_cast<void**>(handle));
}
}  // namespace

extern "C" {
"""
_ONE = """extern const char __fatbinwrapID[];
void __cudaRegisterLinkedBinaryID(Callback callback, void*, void*, void (*)(void*)) {
  collect(__fatbinwrapID, callback);
}
"""


def stub(undefined: str) -> str | None:
    """C++ for what `nm -u` says of the objects; None where no device code is to be linked."""
    names = sorted(set(_REGISTER.findall(undefined)))
    if not names:
        return None
    text = _HEAD.replace("COUNT", str(len(names)))
    return text + "".join(_ONE.replace("ID", name) for name in names) + '}  // extern "C"\n'
