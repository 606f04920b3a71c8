"""CUDA graphs of cuda.bindings: nodes added by hand, by the driver and the runtime."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import b200
from tests.b200.host.test_cuda_python import COUNT, COUNTED, done

driver = pytest.importorskip("cuda.bindings.driver")
runtime = pytest.importorskip("cuda.bindings.runtime")


@pytest.fixture(scope="module", autouse=True)
def gpu():
    return b200.install()


@pytest.fixture
def counted():
    """(device memory of 32 integers, parameters of a launch that counts from 5 there)."""
    memory = done(driver.cuMemAlloc(128))
    module = done(driver.cuModuleLoadData(COUNT))
    parameters = driver.CUDA_KERNEL_NODE_PARAMS()
    parameters.func = done(driver.cuModuleGetFunction(module, b"count"))
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1
    parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = 32, 1, 1
    parameters.kernelParams = ((memory, 5), (None, ctypes.c_int))
    yield memory, parameters
    done(driver.cuMemFree(memory))


def read(memory) -> list[int]:
    out = np.zeros(32, np.int32)
    done(driver.cuMemcpyDtoH(out, memory, 128))
    return out.tolist()


def test_a_graph_of_the_driver(counted, gpu):
    memory, parameters = counted
    graph = done(driver.cuGraphCreate(0))
    first = done(driver.cuGraphAddEmptyNode(graph, None, 0))
    done(driver.cuGraphAddKernelNode(graph, [first], 1, parameters))
    nodes, count = done(driver.cuGraphGetNodes(graph, 2))
    assert count == len(nodes) == 2
    executable = done(driver.cuGraphInstantiate(graph, 0))
    done(driver.cuMemsetD8(memory, 0, 128))
    launches = len(gpu.launches)
    for _ in range(2):
        done(driver.cuGraphLaunch(executable, 0))
    assert len(gpu.launches) == launches + 2 and read(memory) == COUNTED
    done(driver.cuGraphExecDestroy(executable))
    done(driver.cuGraphDestroy(graph))
    assert int(driver.cuGraphLaunch(executable, 0)[0]) == 1  # CUDA_ERROR_INVALID_VALUE


def test_a_graph_of_the_runtime(counted):
    """A fill, a copy after it, and a node that is not of the graph."""
    memory, _ = counted
    graph = done(runtime.cudaGraphCreate(0))
    fill = runtime.cudaMemsetParams()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = int(memory), 9, 4, 32, 1
    filled = done(runtime.cudaGraphAddMemsetNode(graph, None, 0, fill))
    out = np.zeros(32, np.int32)
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    words = (out.ctypes.data, int(memory), 128, kind)
    done(runtime.cudaGraphAddMemcpyNode1D(graph, [filled], 1, *words))
    stranger = runtime.cudaGraphNode_t(1)
    assert int(runtime.cudaGraphAddEmptyNode(graph, [stranger], 1)[0]) == 1
    executable = done(runtime.cudaGraphInstantiate(graph, 0))
    assert not out.any()
    done(runtime.cudaGraphLaunch(executable, 0))
    assert out.tolist() == [9] * 32
