"""What a submission is handed in the emulator: tensors that say they are on the GPU, as on a B200.

The harness makes inputs and checks results on the CPU. Both sides see the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.evaluator.case.timing import WrongResult

UNFINISHED = (
    "custom_kernel returns with work on another queue that nobody has waited for ({}): on a GPU c"
    " may be read before it is written; missing: torch.cuda.current_stream().wait_stream(...), an"
    " event that the current queue waits for, or a synchronize()"
)


def on_gpu(kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`kernel` for CPU data: it is handed them as CUDA tensors, its result comes back as CPU
    tensors. On a real GPU, "cuda" is that one, and the data stay on the CPU.
    The call raises WrongResult where it leaves work on a queue that nobody waits for.
    """
    import b200
    from b200.host import own_gpu
    from b200.host.torch.devices import as_cpu, as_cuda, relabel

    if not own_gpu.is_replaced():
        return kernel

    def call(data: Any) -> Any:
        if isinstance(data[0], list):  # group: the plain scales are on the CPU on a leaderboard
            operands, scales, permuted, sizes = data
            operands, permuted = relabel((operands, permuted), as_cuda)
            data = (operands, scales, permuted, sizes)
        else:
            data = relabel(data, as_cuda)
        output = relabel(kernel(data), as_cpu)
        if left := b200.unfinished():
            raise WrongResult(UNFINISHED.format("; ".join(left)))
        return output

    return call
