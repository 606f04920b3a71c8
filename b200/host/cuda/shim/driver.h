// What the files of the CUDA driver have in common. cudaGetLastError does not know of what its functions
// return.
#pragma once

#include <cuda.h>

#include <fstream>
#include <iterator>
#include <string>

#include "backend.h"

namespace b200::driver {

inline CUresult result(int code) { return static_cast<CUresult>(driver_code(code)); }

template <typename... Words>
CUresult ask(const char* name, Words... words) { return result(call(name, words...)); }

inline bool read_file(const char* path, std::string& text) {
  std::ifstream file(path, std::ios::binary);
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  return static_cast<bool>(file);
}

inline Launch launch_of(const CUlaunchConfig& config) {
  Launch launch{{config.gridDimX, config.gridDimY, config.gridDimZ},
                {config.blockDimX, config.blockDimY, config.blockDimZ}};
  launch.dynamic_smem = config.sharedMemBytes;
  launch.queue = word(config.hStream);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const auto& attribute = config.attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      std::memcpy(launch.cluster, &attribute.value.clusterDim, sizeof launch.cluster);
    else if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      launch.cooperative = attribute.value.cooperative;
    else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      launch.dependent = attribute.value.programmaticStreamSerializationAllowed != 0;
  }
  return launch;
}

}  // namespace b200::driver
