"""What an instruction does to the world around its registers: a small closed set of effects.

The unit that executes an instruction says its effect where it registers it (registry.py), so that
an instruction is described once. Whoever looks at a run reads effects and no opcodes: the checker,
the clock, the explorer. They find their rule by the class of an effect. The checker calls a launch
incomplete that executes an effect without a rule; tests/b200/checker/test_incomplete.py lists them.

Sections are those of the PTX ISA, version 9.0. A scope is "cta", "cluster", "gpu" or "sys"; an
order is "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc" or "mmio" (8.4, 8.5).
"""

from b200.effects.base import *
from b200.effects.memory import *
from b200.effects.operations import *
from b200.effects.registers import *
from b200.effects.synchronisation import *
from b200.effects.tensor import *
