// Included before every source: what a program asks of a tensor's device (../../sources.py).
#pragma once

extern "C" {
extern __attribute__((weak)) int b200_on_gpu;
}

#define B200_ON_GPU bool(&::b200_on_gpu && ::b200_on_gpu)
// What the type of a CPU tensor is equal to where the tensor is on the GPU, or on the CPU.
#define B200_CUDA (B200_ON_GPU ? ::c10::DeviceType::CPU : ::c10::DeviceType::CUDA)
#define B200_CPU (B200_ON_GPU ? ::c10::DeviceType::CUDA : ::c10::DeviceType::CPU)
