"""The packages that tests/dsl.py tells apart, by name, with the version of each that is here."""

import sys
from importlib.metadata import version

print("dsl", version("nvidia-cutlass-dsl"))
print("python", *sys.version_info[:2])
print("torch", version("torch"))
print("triton", version("triton"))
