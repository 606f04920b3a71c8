"""cuda.core, which calls the driver and NVRTC from machine code: over the library of compiled
programs, in a process of its own. What is right is known without the emulator.
"""

import importlib.util
import json
import subprocess
import sys
import types

import pytest

from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc

# It is imported in other processes alone: there our library takes the driver's place.
NEEDED = ("cuda.core", "cuda.bindings._internal.driver")
if any(importlib.util.find_spec(name) is None for name in NEEDED):
    pytest.skip("no cuda.core, or not over these cuda.bindings", allow_module_level=True)
pytestmark = needs_nvcc

PROGRAM = '''
import ctypes
import json

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
)

SOURCE = """
extern "C" __global__ void axpy(float a, float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += a * i;
}
extern "C" __global__ void race(int* x) { x[0] = threadIdx.x < 32 ? 1 : x[0] + 1; }
"""

device = Device()
device.set_current()
queue = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(SOURCE, code_type="c++", options=options).compile("cubin")
axpy = module.get_kernel("axpy")
memory = device.allocate(4096, stream=queue)
memory.fill(0, stream=queue)
config = LaunchConfig(grid=8, block=128)
launch(queue, config, axpy, np.float32(2), memory, np.int32(1000))
host = LegacyPinnedMemoryResource().allocate(4096)
memory.copy_to(host, stream=queue)
queue.sync()
values = np.from_dlpack(host).view(np.float32)
said = {"once": [float(values[n]) for n in (0, 7, 999, 1000)]}

graph = device.create_graph_builder().begin_building()
launch(graph, config, axpy, np.float32(2), memory, np.int32(1000))
executable = graph.end_building().complete()
for _ in range(2):
    executable.launch(queue)
memory.copy_to(host, stream=queue)
queue.sync()
said["by a graph"] = float(values[999])

# A handle of one package is one of the other.
status, kind = driver.cuPointerGetAttribute(
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, int(memory.handle)
)
said["kind"] = int(kind) if int(status) == 0 else str(status)
said["parameter"] = [int(word) for word in driver.cuKernelGetParamInfo(int(axpy.handle), 1)]
parent, child = (driver.cuGraphCreate(0)[1] for _ in range(2))
fill = driver.CUDA_MEMSET_NODE_PARAMS()
fill.dst, fill.value, fill.elementSize = int(memory.handle), 7, 4
fill.width, fill.height, fill.pitch = 16, 1, 64
first = driver.cuGraphAddMemsetNode(child, None, 0, fill, None)[1]
then = driver.cuGraphAddEmptyNode(child, [first], 1)[1]
embedded = driver.cuGraphAddChildGraphNode(parent, None, 0, child)[1]
copy = driver.cuGraphChildGraphNodeGetGraph(embedded)[1]
copied = driver.cuGraphNodeFindInClone(first, copy)[1]
kept = driver.cuGraphMemsetNodeGetParams(copied)[1]
edges = driver.cuGraphGetEdges(copy, 4)
said["embedded"] = [kept.value, kept.width, int(edges[1][0]) == int(copied), edges[-1]]
driver.cuGraphLaunch(driver.cuGraphInstantiate(parent, 0)[1], queue.handle)
memory.copy_to(host, stream=queue)
queue.sync()
said["filled"] = [int(x) for x in np.from_dlpack(host).view(np.int32)[[0, 15]]]
ended = []
ends = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ended.append)
ends_at = driver.CUhostFn(ctypes.cast(ends, ctypes.c_void_p).value)
thing = driver.cuUserObjectCreate(5, ends_at, 1, 1)[1]
holder = driver.cuGraphCreate(0)[1]
driver.cuGraphRetainUserObject(holder, thing, 1, 0)
copy_ = driver.cuGraphClone(holder)[1]
said["kept"] = []
for let_go, handle in (
    (driver.cuUserObjectRelease, (thing, 1)),
    (driver.cuGraphDestroy, (holder,)),
    (driver.cuGraphDestroy, (copy_,)),
):
    let_go(*handle)
    said["kept"].append(list(ended))
said["asked of no memory"] = int(driver.cuPointerGetAttribute(
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 64
)[0])
said["missing"] = int(driver.cuArrayCreate(driver.CUDA_ARRAY_DESCRIPTOR())[0])
print(json.dumps(said))
RACE
'''
RACE = "launch(queue, LaunchConfig(grid=1, block=64), module.get_kernel('race'), memory)"


def run(folder, more="", by=("run", "--no-again")):
    script = folder / "program.py"
    script.write_text(PROGRAM.replace("RACE", more))
    command = [sys.executable, "-m", "b200", *by, str(script)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return run(tmp_path_factory.mktemp("core"), RACE)


def test_its_kernels_have_the_right_values(ended):
    said = json.loads(ended.stdout.splitlines()[0])
    assert said["once"] == [0.0, 14.0, 1998.0, 0.0]
    assert said["by a graph"] == 3 * 1998.0


def test_handles_are_those_of_cuda_bindings(ended):
    """CU_MEMORYTYPE_DEVICE; CUDA_ERROR_INVALID_VALUE where nothing is; success, byte 8, 8 bytes."""
    said = json.loads(ended.stdout.splitlines()[0])
    assert said["kind"] == 2
    assert said["asked of no memory"] == 1
    assert said["parameter"] == [0, 8, 8]


def test_a_graph_within_a_graph(ended):
    """Its nodes are copies, with the parameters and edges of what they are copies of."""
    said = json.loads(ended.stdout.splitlines()[0])
    assert said["embedded"] == [7, 16, True, 1]
    assert said["filled"] == [7, 7]


def test_an_object_lives_as_long_as_the_last_graph_that_keeps_it(ended):
    """CUDA C++ Programming Guide, "CUDA User Objects": a copy of a graph has references of its own."""
    assert json.loads(ended.stdout.splitlines()[0])["kept"] == [[], [], [5]]


def test_what_is_not_modelled_says_its_name(ended):
    """CUDA_ERROR_NOT_SUPPORTED, and a line."""
    assert json.loads(ended.stdout.splitlines()[0])["missing"] == 801
    assert "unsupported: cuArrayCreate_v2 is not in the software B200's CUDA" in ended.stderr


def test_a_race_is_found(ended):
    assert ended.returncode == 1
    assert "race" in ended.stderr and "default_program:6" in ended.stderr


@pytest.mark.parametrize(
    "by, status", [(("run", "--no-again"), 0), (("exec", "--", sys.executable), 1)]
)
def test_its_twin_has_none(tmp_path, by, status):
    """`b200 exec` has status 1 for the call that is not modelled."""
    ended = run(tmp_path, by=by)
    assert "race" not in ended.stderr
    assert json.loads(ended.stdout.splitlines()[0])["by a graph"] == 3 * 1998.0
    assert ended.returncode == status, ended.stderr


def test_where_the_library_cannot_be_made():
    """Its names refuse with the reason; `isinstance` is False."""
    from b200.errors import EmulatorError
    from b200.host.cuda_python import core

    module = types.ModuleType("cuda.core")
    core._refuse(module, "BuildError: g++ is missing")
    for call in (module.Device, module.launch, lambda: module.ObjectCode.from_ptx(b"")):
        with pytest.raises(
            EmulatorError, match="not in the software B200: BuildError: g.. is miss"
        ):
            call()
    assert not isinstance(1, module.Program)


def test_a_call_while_python_ends_is_answered():
    """By the number that CUDA has for it, without a name of any module."""
    from b200.host.cuda.numbered import NumberedDriver

    assert NumberedDriver.answer(None, b"memory_release", None, 0, lambda: True) == 4  # type: ignore
