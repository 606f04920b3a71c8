"""Windows of the generic address space (PTX ISA "Generic Addressing").

A generic address is 64 bits: the window of a state space in the top byte, the address within the
space below. Global memory has window 0, so that a host address is its own generic address.
"""

SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
PARAM_WINDOW = 3 << 56

WINDOW_MASK = (1 << 56) - 1  # the address within a window
