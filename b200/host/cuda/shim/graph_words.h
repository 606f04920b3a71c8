// Parameters of the nodes of a graph, as words for ../graphs.py.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "backend.h"

namespace b200 {

template <typename Parameters>
Launch launch_of(const Parameters& p, dim3 grid, dim3 block) {
  Launch launch{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
  launch.dynamic_smem = p.sharedMemBytes;
  launch.arguments = p.kernelParams;
  launch.packed = p.extra;
  return launch;
}
inline Launch launch_of(const cudaKernelNodeParams& p) {
  return launch_of(p, p.gridDim, p.blockDim);
}
inline Launch launch_of(const CUDA_KERNEL_NODE_PARAMS& p) {
  return launch_of(p, dim3(p.gridDimX, p.gridDimY, p.gridDimZ),
                   dim3(p.blockDimX, p.blockDimY, p.blockDimZ));
}
inline uint64_t kernel_of(const CUDA_KERNEL_NODE_PARAMS& p) { return p.func ? word(p.func) : word(p.kern); }

// to, from, bytes of a row, rows, slices; steps of rows and slices at the destination, the source
struct Copy {
  uint64_t words[9];
};
inline Copy copy_of(const void* to, const void* from, size_t nbytes) {
  return {{word(to), word(from), nbytes, 1, 1, nbytes, nbytes, nbytes, nbytes}};
}
inline const char* at(const cudaPitchedPtr& memory, const cudaPos& pos) {
  return static_cast<const char*>(memory.ptr) + pos.x +
         memory.pitch * (pos.y + memory.ysize * pos.z);
}
inline Copy copy_of(const cudaMemcpy3DParms& p) {
  if (p.srcArray || p.dstArray) call("missing", "cudaMemcpy3DParms with a cudaArray");
  return {{word(at(p.dstPtr, p.dstPos)), word(at(p.srcPtr, p.srcPos)), p.extent.width,
           p.extent.height, p.extent.depth, p.dstPtr.pitch, p.dstPtr.pitch * p.dstPtr.ysize,
           p.srcPtr.pitch, p.srcPtr.pitch * p.srcPtr.ysize}};
}
inline uint64_t place(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
               size_t z, size_t pitch, size_t height) {
  if (type == CU_MEMORYTYPE_ARRAY) call("missing", "CUDA_MEMCPY3D with a CUarray");
  const uint64_t start = type == CU_MEMORYTYPE_HOST ? word(host) : device;
  return start + x + pitch * (y + height * z);
}
inline Copy copy_of(const CUDA_MEMCPY3D& p) {
  return {{place(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY, p.dstZ,
                 p.dstPitch, p.dstHeight),
           place(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY, p.srcZ,
                 p.srcPitch, p.srcHeight),
           p.WidthInBytes, p.Height, p.Depth, p.dstPitch, p.dstPitch * p.dstHeight, p.srcPitch,
           p.srcPitch * p.srcHeight}};
}

// address, value, bytes of an element, elements of a row, rows, bytes from row to row
struct Fill {
  uint64_t words[6];
};
template <typename Parameters>
Fill fill_of(const Parameters& p) {
  return {{word(p.dst), p.value, p.elementSize, p.width, p.height, p.pitch}};
}

}  // namespace b200
