"""A setup.py with CUDAExtension: what it builds, who imports it, and the program's own headers."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import b200
from b200.compiled.command import python_library
from b200.host.cuda import build
from b200.host.cuda.cache import cache_folder
from b200.host.cuda.errors import BuildError
from b200.host.cuda.setup_extension import cuda_extension, is_ours
from b200.host.cuda.sources import on_cpu
from b200.host.cuda.toolkit import find_toolkit
from tests import ROOT
from tests.b200.host.cuda.support import needs, needs_nvcc

NAME = "built_by_a_setup"
SETUP = f"""
import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension, CUDA_HOME
assert CUDA_HOME is not None and torch.cuda.is_available()
setup(
    name="{NAME}",
    version="1",
    packages=["{NAME}"],
    ext_modules=[
        CUDAExtension(
            "{NAME}._C",
            ["csrc/main.cpp", "csrc/cuda/kernels.cu"],
            include_dirs=["csrc"],
            define_macros=[("ADDED", "3"), ("WITH_CUDA", None)],
            extra_compile_args={{"cxx": ["-O3"], "nvcc": ["-O3", "-gencode=arch=compute_80,code=sm_80"]}},
            extra_link_args=["-s"],
        )
    ],
    cmdclass={{"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)}},
)
"""
MAIN = """
#include <Python.h>
#include "launches.h"
#ifndef WITH_CUDA
#error "the setup.py defines it"
#endif
static PyObject* launch(PyObject*, PyObject* given) {
  launch_on(PyLong_AsVoidPtr(PyTuple_GetItem(given, 0)));
  Py_RETURN_NONE;
}
static PyObject* on_gpu(PyObject*, PyObject*) { return PyBool_FromLong(says_cuda()); }
static PyMethodDef functions[] = {
    {"launch", launch, METH_VARARGS, ""}, {"on_gpu", on_gpu, METH_VARARGS, ""}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
LAUNCHES = """
void launch_on(void*);
bool says_cuda();
"""
KERNELS = """
#include "../kernels.cuh"
#include "asks.h"
struct Tensor {  // as torch's, of which all are the CPU's
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
};
void launch_on(void* x) { add<<<1, 32>>>(static_cast<int*>(x)); }
bool says_cuda() { return asks(Tensor()); }
"""
ASKS = """
#pragma once
template <typename T> bool asks(const T& x) { return !!x.is_cuda(); }
"""
HEADER = """
#include "cuda/asks.h"
__global__ void add(int* x) {
  x[threadIdx.x] += ADDED;
  x[32] = threadIdx.x;  // MARK
}
"""
FILES = {
    "setup.py": SETUP,
    f"{NAME}/__init__.py": "from ._C import launch, on_gpu\n",
    "csrc/main.cpp": MAIN,
    "csrc/launches.h": LAUNCHES,
    "csrc/kernels.cuh": HEADER,
    "csrc/cuda/kernels.cu": KERNELS,
    "csrc/cuda/asks.h": ASKS,
}
BUILT = ("-m", "b200", "run")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Python with these words, in a folder, with this project on its path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, fork_server) -> Path:
    """The project, built in its folder."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = fork_server.run(*BUILT, "setup.py", "build_ext", "--inplace", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def module(project: Path) -> ModuleType:
    b200.install()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(project)
        return importlib.import_module(NAME)


@needs_nvcc
def test_its_kernels_run_in_software_and_a_finding_names_the_users_header(module, project):
    x = torch.arange(33, dtype=torch.int32, device="cuda")
    module.launch(x.data_ptr())
    assert x[:32].tolist() == [i + 3 for i in range(32)]
    assert b200._runtime is not None
    findings = b200._runtime.gpu.launches[-1].findings
    assert findings
    line = HEADER.splitlines().index("  x[32] = threadIdx.x;  // MARK") + 1
    assert findings[0].kind == "race"
    assert f"{project}/csrc/kernels.cuh:{line}" in str(findings[0])


@needs_nvcc
def test_a_header_asks_for_the_device_of_the_call(module):
    """In a header that is found beside another one, and in a branch for tensors on the CPU."""
    assert module.on_gpu() and module.on_gpu(torch.zeros(1, device="cuda"))
    assert not module.on_gpu(torch.zeros(1))


@needs_nvcc
def test_without_the_software_b200_it_is_imported_and_says_what_it_is(module, project):
    code = f"import torch, {NAME}\nassert not {NAME}.on_gpu()\n{NAME}.launch(0)"
    done = run(project, "-c", code)
    assert done.returncode != 0 and "compiled for a B200 in software" in done.stderr


@needs_nvcc
def test_a_setup_that_leaves_build_ext_as_it_is(project, fork_server):
    """DeepGEMM's has CUDAExtension and no BuildExtension."""
    lines = [line for line in SETUP.splitlines() if "cmdclass" not in line]
    (project / "plain.py").write_text("\n".join(lines))
    done = fork_server.run(*BUILT, "plain.py", "build_ext", "--build-lib=p", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (project / "p").rglob("_C.*.so")
    assert is_ours(str(built))


@needs(python_library)
@needs_nvcc
def test_a_build_that_is_another_process_has_it_under_exec(project):
    """pip builds in one. The kernels are in the cache by now."""
    (project / "builds.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, 'setup.py', 'build', '--build-base=b'], check=True)\n"
    )
    done = run(project, "-m", "b200", "exec", "--", sys.executable, "builds.py")
    assert done.returncode == 0, done.stdout + done.stderr
    built = list((project / "b").rglob("_C.so"))
    assert len(built) == 1 and is_ours(str(built[0]))


@needs_nvcc
def test_what_exec_puts_into_the_environment_compiles_nothing_anew(monkeypatch):
    """Other headers of the program's own do."""
    request, toolkit, names = build.Request("e", ()), find_toolkit(), []
    ours = cache_folder() / "kit-0" / "include_more"
    for places in ("", f"{ours}", "/mine", f"{ours}:/mine"):
        monkeypatch.setenv("CPATH", places)
        names.append(build._key(request, toolkit))
    assert names[0] == names[1] != names[2] == names[3]


def test_what_a_setup_cannot_have_is_refused_by_its_name():
    with pytest.raises(BuildError, match="extension 'e': dlink= is not in the software B200"):
        cuda_extension("e", ["e.cu"], dlink=True)


@pytest.mark.parametrize(
    ("said", "on_the_cpu"),
    [
        ("x.device().is_cuda()", "x.device().is_cpu() == B200_ON_GPU"),
        ("!x->is_cpu()", "!x->is_cpu() != B200_ON_GPU"),
        ("x.device().type() == torch::kCUDA", "x.device().type() == B200_CUDA"),
        ("at::DeviceType::CPU != x.device().type()", "B200_CPU != x.device().type()"),
        ("options.device(torch::kCUDA)", "options.device(torch::kCPU)"),
        ("TORCH_LIBRARY_IMPL(a, CUDA, m)", "TORCH_LIBRARY_IMPL(a, CUDA, m)"),
        ("bool is_cuda() const", "bool is_cuda() const"),
    ],
)
def test_words_about_devices(said, on_the_cpu):
    assert on_cpu(said) == on_the_cpu
