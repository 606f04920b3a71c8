// Stands in for torch's header, whose generated part a build without CUDA does not have.
#pragma once

#define C10_CUDA_API
#define C10_CUDA_EXPORT
#define C10_CUDA_IMPORT
#define C10_COMPILE_TIME_MAX_GPUS 120
