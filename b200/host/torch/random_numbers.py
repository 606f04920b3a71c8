"""Random numbers of torch.cuda: the GPU draws from the CPU's generator."""

from __future__ import annotations

from typing import Any

import torch

from b200.host.torch.device_arguments import DEVICE, names_cuda


def functions() -> dict[str, Any]:
    """The functions of torch.cuda about random numbers."""
    generator = torch.default_generator

    def state(device=None):
        return generator.get_state()

    def set_state(new, device=None):
        generator.set_state(new)

    return {
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state()],
        "set_rng_state": set_state,
        "set_rng_state_all": lambda states: set_state(states[0]),
        "default_generators": (generator,),
    }


def generator_type() -> type:
    """torch.Generator that understands "cuda"."""
    original = torch.Generator

    class Kind(type(original)):
        def __instancecheck__(cls, thing) -> bool:
            return isinstance(thing, original)

    class CudaGenerator(original):
        """A generator of the CPU's numbers that says it is on cuda:0."""

        device = property(lambda self: DEVICE)  # pyright: ignore[reportAssignmentType]

        def __new__(cls):
            return original.__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]

        def __init__(self):
            super().__init__()

    class Generator(original, metaclass=Kind):
        """torch.Generator; "cuda" is understood."""

        def __new__(cls, device: str = "cpu"):
            return CudaGenerator() if names_cuda(device) else original(device)

    return Generator
