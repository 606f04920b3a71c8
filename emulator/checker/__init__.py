"""Races, protocol errors and lifetimes in what a kernel does with memory and barriers, found while
it runs.

machine.py puts the checker into a machine; observer.py is told of everything; clocks.py says who
knows of what;
shared.py, tensor.py, global_memory.py and lifetime.py are the rules; words.py says it to a person.
"""

from .finding import Finding
from .machine import Checked, CheckedMachine

__all__ = ["Checked", "CheckedMachine", "Finding"]
