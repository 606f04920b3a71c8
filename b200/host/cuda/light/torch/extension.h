// Stands in for torch's header (see ../ATen/ATen.h). B200_BINDINGS: the source binds to Python.
#pragma once

#include <torch/all.h>
#ifdef B200_BINDINGS
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#endif
