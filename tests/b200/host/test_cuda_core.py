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
    Device, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
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
# What a copy says of itself that is no part of what it does.
moves, moved = driver.CUDA_MEMCPY3D(), driver.cuGraphCreate(0)[1]
moves.srcMemoryType = moves.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
moves.srcDevice, moves.dstDevice = int(memory.handle), int(memory.handle) + 32
moves.WidthInBytes, moves.Height, moves.Depth = 4, 1, 1
move = driver.cuGraphAddMemcpyNode(moved, None, 0, moves, driver.cuCtxGetCurrent()[1])[1]
again = driver.cuGraphNodeFindInClone(move, driver.cuGraphClone(moved)[1])[1]
said["moves"] = [
    int(driver.cuGraphMemcpyNodeGetParams(node)[1].srcMemoryType) for node in (move, again)
]
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

# One of a graph in a node of a graph in a node of a graph; one of a graph that is replaced.
def retained(number):
    made = driver.cuGraphCreate(0)[1]
    thing = driver.cuUserObjectCreate(number, ends_at, 1, 1)[1]
    driver.cuGraphRetainUserObject(made, thing, 1, 0)
    driver.cuUserObjectRelease(thing, 1)
    return made

inside = retained(6)
between, outside = (driver.cuGraphCreate(0)[1] for _ in range(2))
driver.cuGraphAddChildGraphNode(between, None, 0, inside)
node = driver.cuGraphAddChildGraphNode(outside, None, 0, between)[1]
replaced, empty = retained(7), driver.cuGraphCreate(0)[1]
kept_by = driver.cuGraphInstantiate(replaced, 0)[1]
for let_go, handle in (
    (driver.cuGraphDestroy, (inside,)),
    (driver.cuGraphDestroy, (between,)),
    (driver.cuGraphDestroyNode, (node,)),
    (driver.cuGraphDestroy, (replaced,)),
    (driver.cuGraphExecUpdate, (kept_by, empty)),
):
    let_go(*handle)
    said["kept"].append(list(ended))

# A graph under capture has its nodes, and takes others.
number = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
driver.cuStreamBeginCapture(queue.handle, driver.CUstreamCaptureMode(0))
driver.cuMemsetD32Async(int(memory.handle), 3, 1, queue.handle)
_, _, _, under_way, after, _, many = driver.cuStreamGetCaptureInfo(queue.handle)
more = driver.cuGraphAddMemsetNode(under_way, after, many, fill, None)[1]
driver.cuStreamUpdateCaptureDependencies(queue.handle, [more], None, 1, int(number))
driver.cuMemsetD32Async(int(memory.handle), 9, 1, queue.handle)
captured = driver.cuStreamEndCapture(queue.handle)[1]
nodes = driver.cuGraphGetNodes(captured, 3)[1]
edges = driver.cuGraphGetEdges(captured, 4)
said["captured"] = [
    [driver.cuGraphMemsetNodeGetParams(node)[1].value for node in nodes],
    sorted([nodes.index(a), nodes.index(b)] for a, b in zip(*map(lambda e: e[: edges[-1]], edges[1:3]))),
]
# A node of a graph in a node of a graph, and what an executable graph does not take.
outer = driver.cuGraphCreate(0)[1]
holds = driver.cuGraphAddChildGraphNode(outer, None, 0, parent)[1]
middle = driver.cuGraphChildGraphNodeGetGraph(holds)[1]
inner = driver.cuGraphNodeFindInClone(embedded, middle)[1]
innermost = driver.cuGraphChildGraphNodeGetGraph(inner)[1]
said["innermost"] = driver.cuGraphMemsetNodeGetParams(
    driver.cuGraphNodeFindInClone(copied, innermost)[1]
)[1].value
runs = driver.cuGraphInstantiate(outer, 0)[1]
said["other graph"] = int(driver.cuGraphExecUpdate(runs, captured)[0])
driver.cuGraphDestroyNode(holds)
said["gone"] = int(driver.cuGraphGetNodes(innermost)[0])
owns = driver.cuGraphCreate(0)[1]
asks = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
asks.bytesize, asks.poolProps.allocType = 4, driver.CUmemAllocationType(1)
asks.poolProps.location.type = driver.CUmemLocationType(1)
allocates = driver.cuGraphAddMemAllocNode(owns, None, 0, asks)[1]
silent = [driver.cuEventCreate(2)[1] for _ in range(2)]
for event in silent:
    driver.cuEventRecord(event, queue.handle)
context = driver.cuCtxGetCurrent()[1]
while int(driver.cuCtxGetCurrent()[1]):
    driver.cuCtxPopCurrent()
said["refused"] = {
    "a node beside an allocation": int(driver.cuGraphDestroyNode(allocates)[0]),
    "a time of events without": int(driver.cuEventElapsedTime(*silent)[0]),
    "a device that is not there": int(driver.cuDeviceGet(-1)[0]),
    "no context": int(driver.cuKernelGetParamInfo(int(axpy.handle), 1)[0]),
}
for make_current in (driver.cuCtxPushCurrent, driver.cuCtxPushCurrent, driver.cuCtxSetCurrent):
    make_current(context)
said["popped"] = 0
while int(driver.cuCtxGetCurrent()[1]):
    driver.cuCtxPopCurrent()
    said["popped"] += 1
driver.cuCtxPushCurrent(context)
said["nothing"] = [int(x) for x in driver.cuMemAllocAsync(0, queue.handle)]
unknown = driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
said["name"] = driver.cuGetErrorName(unknown)[1].decode(), driver.cuGetErrorString(unknown)[1].decode()
try:
    queue.record(options=EventOptions(ipc_enabled=True))
except Exception as error:
    said["an event of several processes"] = str(error).partition(":")[0]
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
    assert said["moves"] == [2, 2]  # CU_MEMORYTYPE_DEVICE


def test_a_graph_under_capture_has_its_nodes(ended):
    """One that is added by hand comes between those that are captured (cuda.h,
    cuStreamUpdateCaptureDependencies).
    """
    values, edges = json.loads(ended.stdout.splitlines()[0])["captured"]
    assert values == [3, 7, 9]
    assert edges == [[0, 1], [1, 2]]


def test_graphs_in_graphs_are_copied_and_end_with_their_node(ended):
    """CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE for a graph of other nodes."""
    said = json.loads(ended.stdout.splitlines()[0])
    assert said["innermost"] == 7
    assert said["gone"] == 1
    assert said["other graph"] == 910


def test_what_cuda_refuses_has_its_number(ended):
    """cuda.h: CUDA_ERROR_NOT_SUPPORTED, INVALID_HANDLE, INVALID_DEVICE, INVALID_CONTEXT."""
    said = json.loads(ended.stdout.splitlines()[0])
    assert list(said["refused"].values()) == [801, 400, 101, 201]
    assert said["popped"] == 2  # cuCtxSetCurrent takes the place of the top
    assert said["nothing"] == [0, 0]
    assert said["name"] == ["CUDA_ERROR_NOT_INITIALIZED", "initialization error"]


def test_what_is_made_is_destroyed_while_a_refusal_is_on_its_way(ended):
    """cuda.core destroys the event in machine code, with Python's exception set: it died of that."""
    said = json.loads(ended.stdout.splitlines()[0])
    assert said["an event of several processes"] == "CUDA_ERROR_NOT_SUPPORTED"


def test_an_object_lives_as_long_as_the_last_graph_that_keeps_it(ended):
    """CUDA C++ Programming Guide, "CUDA User Objects": a copy of a graph has references of its own."""
    assert json.loads(ended.stdout.splitlines()[0])["kept"] == [
        *([], [], [5]),  # released, its graph destroyed, the copy, too
        *([5], [5], [5, 6]),  # graphs that were copied are destroyed, the node with the copies
        *([5, 6], [5, 6, 7]),  # the graph is destroyed, its executable graph takes another
    ]


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
    assert "default_program:6" not in ended.stderr
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
