"""A libcuda.so.1 that says there is one GPU, and ends the process with the name of anything else
that is called: what runs in software must not reach it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.b200.host.cuda.support import made_once_of

REACHED = "THE REAL DRIVER WAS CALLED"
# What libraries ask when they are loaded, or to find out whether there is a GPU. cuGetExportTable
# finds nothing (500, CUDA_ERROR_NOT_FOUND), so NVIDIA's runtime library does not start over it.
ALLOWED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int hidden(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible && (!*visible || *visible == '-');
}
int cuInit(unsigned flags) { return hidden() ? 100 : 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = !hidden(); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return hidden() ? 100 : 0; }
int cuDeviceGetAttribute(int *value, int number, int device) {
  *value = number == 75 ? 9 : number == 76 ? 0 : 1;
  return 0;
}
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
int cuGetExportTable(const void **table, const void *id) { return 500; }
int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags) {
  *out = dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
  return *out ? 0 : 500;
}
int cuGetProcAddress_v2(
    const char *name, void **out, int version, unsigned long long flags, int *status) {
  int found = cuGetProcAddress(name, out, version, flags);
  if (status) *status = found ? 1 : 0; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
  return found;
}
"""
FORBIDDEN = 'int {name}(void) {{ fprintf(stderr, "%s: {name}\\n", "' + REACHED + '"); abort(); }}\n'
VARIANTS = ("", "_v2", "_v3", "_ptsz", "_v2_ptsz")


def build() -> Path:
    """The folder with the library, for LD_LIBRARY_PATH."""
    from cuda.bindings import driver

    names = [name for name in dir(driver) if name.startswith("cu") and name[2:3].isupper()]
    exported = sorted({name + variant for name in names for variant in VARIANTS})
    forbidden = [name for name in exported if f" {name}(" not in ALLOWED]
    source = ALLOWED + "".join(FORBIDDEN.format(name=name) for name in forbidden)
    command = ["cc", "-shared", "-fPIC", "-w", "stub.c", "-o", "libcuda.so.1"]
    command.append("-Wl,-soname,libcuda.so.1")

    def make(folder: Path) -> None:
        subprocess.run(command, cwd=folder, check=True)

    return made_once_of({"stub.c": source}, make, *command)
