// Stands in for torch's header (see ../ATen/ATen.h).
#pragma once

#include <torch/types.h>
