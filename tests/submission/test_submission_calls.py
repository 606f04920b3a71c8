"""custom_kernel as a function: calls in a row, what is kept between them, wrong input."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

import b200
import reference
import submission
from lab.kernel_cases import dual, gemm, gemv, group, inputs, poison


@pytest.fixture(autouse=True)
def gpu():
    return b200.install(check=True)


def right(data: tuple) -> bool:
    _, result = submission.unpack(data)
    poison(result)
    returned = submission.custom_kernel(data)
    assert returned is result or all(a is b for a, b in zip(returned, result))
    return reference.check_implementation(data, returned)[0]


def fill(data: tuple, source: tuple) -> None:
    """Copy the values of `source` into the tensors of `data`."""
    for mine, other in zip(data, source):
        if isinstance(mine, torch.Tensor):
            mine.view(torch.uint8).copy_(other.view(torch.uint8))


def test_changed_values_at_the_same_addresses():
    data = inputs(gemm(128, 40, 256), seed=1)
    assert right(data)
    before = data[-1].clone()
    fill(data[:6], inputs(gemm(128, 40, 256), seed=2)[:6])
    assert right(data)
    assert not torch.equal(before, data[-1])


def test_the_same_form_at_new_addresses():
    first, second = (inputs(dual(128, 24, 320), seed) for seed in (1, 2))
    assert first[0].data_ptr() != second[0].data_ptr()
    assert right(first) and right(second) and right(first)


def test_interleaved_problems_and_shapes():
    problems = [gemv(128, 256), gemm(128, 24, 256), dual(128, 24, 320), group((8, 128, 64))]
    problems += [gemm(256, 24, 256), gemv(256, 256), group((8, 128, 64), (16, 128, 64))]
    data = [inputs(problem, seed) for seed, problem in enumerate(problems)]
    for _ in range(2):
        assert all(right(d) for d in data)
    assert right(data[3]) and right(data[0])


def test_one_tensor_as_two_operands():
    data = list(inputs(gemm(128, 128, 256), seed=1))
    data[1], data[3], data[5] = data[0], data[2], data[4]
    assert right(tuple(data))
    assert right(tuple(data))


def test_nothing_but_kernels_is_kept():
    data = inputs(gemm(128, 24, 256), seed=1)
    watched = [weakref.ref(tensor) for tensor in data]
    assert right(data)
    del data
    gc.collect()
    assert not any(ref() is not None for ref in watched)


def test_shapes_of_one_configuration_share_a_kernel(gpu):
    assert right(inputs(gemm(128, 24, 256), seed=1))
    compiled = submission.compile_kernel.cache_info().misses
    assert right(inputs(gemm(128, 24, 512), seed=1))
    assert submission.compile_kernel.cache_info().misses == compiled


# ---- wrong input ---------------------------------------------------------------------------------


def replaced(data: tuple, index: int, tensor) -> tuple:
    return (*data[:index], tensor, *data[index + 1 :])


def base() -> tuple:
    return inputs(gemm(128, 24, 256), seed=1)


def grouped() -> tuple:
    return inputs(group((24, 128, 192), (8, 256, 64)), seed=1)


def sizes_off(data: tuple) -> tuple:
    return (*data[:3], [data[3][0], (9, 256, 64, 1)])


def uneven(data: tuple) -> tuple:
    (a, b, c), other = data[0]
    return ([(a, b, c[:, :8]), other], *data[1:])


WRONG = {
    "no tuple": (lambda: 5, TypeError, "data: expected 7 tensors.* found int"),
    "too short": (lambda: base()[:5], TypeError, "data: .*found 5 items"),
    "device": (
        lambda: replaced(base(), 1, base()[1].to("meta")),
        ValueError,
        "b: expected cpu, found meta",
    ),
    "no tensor": (lambda: replaced(base(), 1, "b"), TypeError, "b: expected a tensor, found str"),
    "dtype": (
        lambda: replaced(base(), 0, base()[0].view(torch.uint8)),
        TypeError,
        "a: expected dtype torch.float4_e2m1fn_x2, found torch.uint8",
    ),
    "dtype of c": (
        lambda: replaced(base(), 6, base()[6].float()),
        TypeError,
        "c: expected dtype torch.float16, found torch.float32",
    ),
    "dimensions": (lambda: replaced(base(), 1, base()[1][0]), ValueError, "b: expected 3 dim"),
    "empty": (lambda: replaced(base(), 0, base()[0][:0]), ValueError, r"a: .*found shape \[0, "),
    "K": (
        lambda: tuple(t[:, :16] if i < 2 else t for i, t in enumerate(base())),
        ValueError,
        "a: expected K a multiple of 64, found 32",
    ),
    "K of b": (
        lambda: replaced(base(), 1, inputs(gemm(128, 24, 512), 1)[1]),
        ValueError,
        r"b: expected shape \[128, 128, 1\], found \[128, 256, 1\]",
    ),
    "scales": (
        lambda: replaced(base(), 5, inputs(gemm(256, 24, 256), 1)[5]),
        ValueError,
        r"sfb_permuted: expected shape \[32, 4, 1, 4, 4, 1\], found \[32, 4, 2, 4, 4, 1\]",
    ),
    "layout of scales": (
        lambda: replaced(base(), 4, base()[4].contiguous()),
        ValueError,
        "sfa_permuted: expected strides",
    ),
    "layout of c": (
        lambda: replaced(base(), 6, base()[6].permute(1, 0, 2).contiguous().permute(1, 0, 2)),
        ValueError,
        r"c: expected strides \[128, 1, 3072\], found \[1, 24, 1\]",
    ),
    "shape of c": (lambda: replaced(base(), 6, base()[6][:, :64]), ValueError, "c: expected shape"),
    "sizes": (lambda: sizes_off(grouped()), ValueError, r"sizes\[1\]: expected \(8, 256, 64, 1\)"),
    "c of a group": (lambda: uneven(grouped()), ValueError, r"c\[0\]: expected shape"),
    "sizes of one group": (
        lambda: (*grouped()[:3], grouped()[3][:1]),
        TypeError,
        "4 lists with an item for each group",
    ),
    "a group without c": (
        lambda: ([triple[:2] for triple in grouped()[0]], *grouped()[1:]),
        TypeError,
        "4 lists with an item for each group",
    ),
    "no sizes": (lambda: (*grouped()[:3], None), TypeError, "4 lists with an item"),
    "sizes that are none": (
        lambda: (*grouped()[:3], [5, 6]),
        ValueError,
        r"sizes\[0\]: expected \(24, 128, 192, 1\), found 5",
    ),
    "no group": (lambda: ([], [], [], []), TypeError, "4 lists with an item for each group"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name, gpu):
    make, error, message = WRONG[name]
    launches = len(gpu.launches)
    with pytest.raises(error, match=message) as caught:
        submission.custom_kernel(make())
    assert "\n" not in str(caught.value)
    assert len(gpu.launches) == launches


def test_wrong_input_after_right_input(gpu):
    """The check of a known form does not swallow what a new call hands over."""
    data = base()
    assert right(data)
    launches = len(gpu.launches)
    with pytest.raises(TypeError, match="b: expected a tensor, found str"):
        submission.custom_kernel(replaced(data, 1, "b"))
    with pytest.raises(ValueError, match="c: expected shape"):
        submission.custom_kernel(replaced(data, 6, data[6][:, :64]))
    assert len(gpu.launches) == launches


def moved(tensor: torch.Tensor, past: int) -> torch.Tensor:
    """A copy, so many bytes past a multiple of 32."""
    stored = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    room = torch.zeros(stored.numel() + 64 // stored.itemsize, dtype=stored.dtype)
    start = (-room.data_ptr() % 32 + past) // stored.itemsize
    copy = room.as_strided(stored.shape, stored.stride(), start)
    return copy.copy_(stored).view(tensor.dtype)


def test_a_c_between_32_bytes(gpu):
    data = base()
    launches = len(gpu.launches)
    with pytest.raises(ValueError, match="c: expected an address of 32 bytes, found 0x"):
        submission.custom_kernel(replaced(data, 6, moved(data[6], 16)))
    assert len(gpu.launches) == launches


@pytest.mark.parametrize("index, name", [(0, "a"), (1, "b"), (4, "sfa_perm"), (5, "sfb_perm")])
def test_inputs_lie_at_multiples_of_16_bytes(gpu, index, name):
    data = base()
    assert right(replaced(data, index, moved(data[index], 16)))
    launches = len(gpu.launches)
    with pytest.raises(ValueError, match=f"{name}.*: expected an address of 16 bytes, found 0x"):
        submission.custom_kernel(replaced(data, index, moved(data[index], 8)))
    assert len(gpu.launches) == launches


def test_tensors_of_another_device_than_the_current_one(gpu, monkeypatch):
    data = tuple(tensor.cuda() for tensor in base())
    assert right(data)
    launches = len(gpu.launches)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    with pytest.raises(ValueError, match="c: expected cuda:1, the current device, found cuda:0"):
        submission.custom_kernel(data)
    assert len(gpu.launches) == launches


def test_two_threads_call_at_once(monkeypatch):
    """Each kernel is compiled once, by one thread at a time. Launches are gone: the emulator's GPU
    is of one thread.
    """
    compiling, compiled, called, start = [], [], [], threading.Barrier(4)

    def compile_kernel(plan):
        compiling.append(plan)
        assert len(compiling) == 1
        time.sleep(0.05)
        compiled.append(compiling.pop())
        return called.append

    submission.kernel_for.cache_clear()
    monkeypatch.setattr(submission, "compile_kernel", compile_kernel)
    data = [inputs(problem, 1) for problem in (gemm(128, 24, 256), dual(128, 24, 320))]

    def call(number):
        start.wait()
        submission.custom_kernel(data[number % 2])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    submission.kernel_for.cache_clear()
    assert len(compiled) == 2 and len(called) == 4


def test_too_many_groups(gpu):
    data = inputs(group((8, 128, 64), (8, 128, 64)), seed=1)
    many = tuple(list(part) * 55 for part in data)
    with pytest.raises(ValueError, match="sizes: expected at most 58 groups.* found 110"):
        submission.custom_kernel(many)


def test_an_instruction_of_a_helper_has_the_calls_that_lead_to_it(gpu):
    """The DSL gives it the helper's line alone; which of its modules calls the kernel is known to
    b200/host/dsl/source_lines.py for the versions that there are.
    """
    assert right(inputs(gemm(128, 40, 256), seed=1))
    instructions = [op.ins for block in gpu.machine.code.structure for op in block.ops]
    mma = next(ins for ins in instructions if ins.mods[:2] == ("tcgen05", "mma"))
    functions = [loc.function for loc in mma.loc.chain()]
    assert functions[-1] == "kernel" and "mma_warp" in functions
