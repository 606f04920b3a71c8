"""A wrong output is explained: each wrong kernel is imitated on the inputs, then named by the diff.

The imitation changes the data and asks the reference, or moves parts of the right answer, and
shares no code with the hypotheses.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.diagnosis.diff import explain
from harness.diagnosis.drawing import _most
from reference import generate_input, ref_kernel
from utils import clone_data, dequantize, permute_scales

GEMM = {"m": 128, "n": 256, "k": 512, "l": 2, "seed": 5}
GEMV = {"m": 256, "k": 512, "l": 1, "seed": 5}
DUAL = {"m": 128, "n": 256, "k": 256, "l": 1, "seed": 5}


def gemm():
    return generate_input("nvfp4_gemm", **GEMM)


def dual():
    return generate_input("nvfp4_dual_gemm", **DUAL)


def bytes_of(tensor):
    """A view of the tensor's storage, in the order of memory."""
    return (
        tensor.view(torch.uint8).permute(2, 0, 1) if tensor.ndim == 3 else tensor.view(torch.uint8)
    )


def with_bytes(data, index, change):
    """The reference's answer to data whose operand `index` has other bytes."""
    other = list(clone_data(data))
    raw = other[index].view(torch.uint8)
    raw.copy_(change(raw.clone()))
    return ref_kernel(tuple(other))


def swap_nibbles(raw):
    return (raw >> 4) | (raw << 4)


def products(data):
    """float64 p1, p2 of a dual case."""
    a, b1, b2, sfa, sfb1, sfb2 = data[:6]
    x = dequantize(a[:, :, 0], sfa[:, :, 0]).double()
    return [x @ dequantize(b[:, :, 0], s[:, :, 0]).double().T for b, s in ((b1, sfb1), (b2, sfb2))]


def matrices(data):
    """float64 operands of each batch of a gemm."""
    for l in range(data[0].shape[2]):
        a, b, sfa, sfb = (t[:, :, l] for t in data[:4])
        yield dequantize(a, sfa).double(), dequantize(b, sfb).double()


def half(x):
    return x.half().unsqueeze(2)


def explained(data, output) -> str:
    right, report = explain(data, output)
    assert not right
    lines = [line for line in report.splitlines() if line.startswith(("  explained:", "  or:"))]
    assert lines, report
    return "\n".join(lines)


def test_a_right_output_needs_no_explanation():
    data = gemm()
    assert explain(data, ref_kernel(data)) == (True, "the output is right: nothing to explain")


@pytest.mark.parametrize("index, name", [(0, "a"), (1, "b")])
def test_swapped_nibbles(index, name):
    data = gemm()
    output = with_bytes(data, index, swap_nibbles)
    assert f"nibbles of each byte of {name} are swapped" in explained(data, output)


def permuted_scales(data, index, change):
    """Scales of operand a (2) or b (3) of a gemm, changed as the atoms lie in memory."""
    other = list(clone_data(data))
    scales = other[index].view(torch.uint8)
    rows, columns, batches = scales.shape
    atoms = scales.reshape(rows // 128, 4, 32, columns // 4, 4, batches).permute(5, 0, 3, 2, 1, 4)
    memory = change(atoms.contiguous())  # [l, row atom, k atom, 32 rows, row group, k block]
    back = memory.permute(1, 4, 3, 2, 5, 0).reshape(rows, columns, batches)
    scales.copy_(back)
    return ref_kernel(tuple(other))


@pytest.mark.parametrize("index, name", [(2, "a"), (3, "b")])
def test_scales_transposed_in_the_atom(index, name):
    data = gemm()
    output = permuted_scales(data, index, lambda x: x.transpose(4, 5))
    order = "[row % 32][K block][row / 32]"
    text = f"scale factors of {name} are read as if an atom's bytes lay as {order}"
    assert text in explained(data, output)


def test_scales_of_another_row_group():
    data = gemm()
    output = permuted_scales(data, 3, lambda x: x.roll(-1, dims=4))
    assert "scale factors of b are taken from the row group 1 further" in explained(data, output)


def test_scales_an_atom_too_far():
    """Behind the last atom of a batch lies the first one of the next."""
    data = gemm()

    def shift(x):
        flat = x.reshape(-1, 512)
        return torch.cat([flat[1:], flat[-1:]]).reshape(x.shape)

    output = permuted_scales(data, 2, shift)
    right = ref_kernel(data)
    output[:, :, 1] = right[:, :, 1]
    text = explain(data, output)[1]
    assert "scale factors of a are read one atom (512 bytes) further on" in text


@pytest.mark.parametrize(
    "low, high, words",
    [(448, 512, "the last 64 of K are dropped"), (0, 256, "the K tile 0 of 2 (of 256) is dropped")],
)
def test_a_part_of_k_dropped(low, high, words):
    data = gemm()

    def clear(raw):
        raw[:, low // 2 : high // 2] = 0
        return raw

    assert words in explained(data, with_bytes(data, 0, clear))


def test_a_stage_counted_twice():
    data = gemm()
    weight = torch.ones(512, dtype=torch.float64)
    weight[:256] = 2
    output = torch.stack([(a * weight) @ b.T for a, b in matrices(data)], 2).half()
    assert "the K tile 0 of 2 (of 256) is counted twice" in explained(data, output)


def test_rows_from_another_lane_quarter():
    data = gemm()
    right = ref_kernel(data)
    quarters = right.reshape(128, 2, 4, 32, 2)
    output = right.clone()
    output.copy_(quarters.roll(-1, dims=2).reshape(right.shape))
    assert "columns are read from the lane quarter 1 further" in explained(data, output)
    output.copy_(quarters[:, :, :1].expand(-1, -1, 4, -1, -1).reshape(right.shape))
    assert "all warps read lane quarter 0 of the columns" in explained(data, output)


def test_weights_of_gemv_are_rows():
    data = generate_input("nvfp4_gemv", **GEMV)
    right = ref_kernel(data)
    output = right.clone()
    output.copy_(
        right.reshape(2, 4, 32, 1, 1)[:, :1].expand(-1, 4, -1, -1, -1).reshape(right.shape)
    )
    assert "all warps read lane quarter 0 of the rows" in explained(data, output)


@pytest.mark.parametrize(
    "combine, words",
    [
        (lambda p, q: p, "only the first product, without silu"),
        (lambda p, q: q, "only the second product"),
        (lambda p, q: p * q, "no silu"),
        (lambda p, q: p * torch.nn.functional.silu(q), "silu is applied to the second product"),
    ],
)
def test_dual_combined_wrongly(combine, words):
    data = dual()
    scale = 1 / 64  # keeps the plain products finite in fp16
    data[3].copy_((data[3].float() * scale).to(data[3].dtype))
    data[6].copy_(permute_scales(data[3]))
    assert words in explained(data, half(combine(*products(data))))


def test_neighbouring_batch():
    data = gemm()
    right = ref_kernel(data)
    output = right.clone()
    output[:, :, 0] = right[:, :, 1]
    assert "the batch +1 is computed" in explained(data, output)


@pytest.mark.parametrize(
    "index, words",
    [
        ((1, 1), "the group +1 is computed"),
        ((0, 1), "b is taken from the group +1"),
        ((1, 0), "a is taken from the group +1"),
    ],
)
def test_neighbouring_group(index, words):
    """The first of two groups of one size; index: the group that a and b are taken from."""
    sizes = {"m": (64, 64), "n": (128, 128), "k": (256, 256), "g": 2}
    data = generate_input("nvfp4_group_gemm", **sizes, seed=5)
    abc, scales = data[:2]
    (a, _, _), (_, b, _) = (abc[i] for i in index)
    (sfa, _), (_, sfb) = (scales[i] for i in index)
    x, w = dequantize(a[:, :, 0], sfa[:, :, 0]), dequantize(b[:, :, 0], sfb[:, :, 0])
    output = ref_kernel(data)
    output[0] = half(x.double() @ w.double().T)
    text = explained(data, output)
    assert words in text and "group 1 (c" not in explain(data, output)[1]


def test_accumulator_not_reset():
    data = gemm()
    output = torch.stack([a @ b.T for a, b in matrices(data)], 2)
    output[:, 128:] += output[:, :128].clone()
    text = explained(data, output.half())
    assert "the accumulator is not reset: it still holds the tile 128 columns before" in text


def test_transposed_output():
    data = generate_input("nvfp4_gemm", **{**GEMM, "n": 128, "l": 1})
    right = ref_kernel(data)
    output = right.clone()
    output[:, :, 0] = right[:, :, 0].T
    assert "the output is transposed" in explained(data, output)


def test_missing_columns_and_the_map(tmp_path):
    data = gemm()
    output = ref_kernel(data)
    output[16:64, :, 0] = 0
    picture = tmp_path / "wrong.png"
    right, report = explain(data, output, picture, "a gemm")
    assert not right and f"picture: {picture}" in report
    assert "never written" in report
    assert "rows with errors: 16-63" in report
    assert "columns with errors: all 256" in report
    assert "by batch: 0: " in report
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_of_a_difference_says_shape_and_range(tmp_path):
    data = gemm()
    output = ref_kernel(data)
    output[3, 5, 0] += 100
    output[7, 9, 0] = float("nan")
    explain(data, output, tmp_path / "wrong.html", "a gemm")
    page = (tmp_path / "wrong.html").read_text()
    assert "<h1>a gemm; group 0, batch 0: c is 128 x 256, K = 512" in page
    assert "2 of 32,768 elements differ, errors 100 to 100" in page
    assert "rows with errors: 3, 7" in page and "of the MMA" not in page


def test_a_lone_error_is_in_the_picture():
    cells = np.zeros((1500, 3), np.float32)
    cells[1499, 2] = 1
    shrunk = _most(cells, 2)
    assert shrunk.shape == (750, 2) and shrunk.sum() == 1 and shrunk[749, 1] == 1


def test_what_no_hypothesis_explains():
    data = gemm()
    output = ref_kernel(data) * 1.5 + 7
    _, report = explain(data, output)
    assert "known mistakes gives this output" in report


@pytest.mark.parametrize("index, name", [(2, "a"), (3, "b")])
def test_scales_not_advanced(index, name):
    """Every instruction takes the four scale factors of its K tile's first."""
    data = gemm()
    k = torch.arange(GEMM["k"] // 16)
    first = k // 16 * 16 + k % 4
    output = with_bytes(data, index, lambda raw: raw[:, first])
    text = explained(data, output)
    assert f"scale factors of {name} are not advanced" in text
    assert "the first of its K tile (of 256)" in text


@pytest.mark.parametrize(
    "keep, words",
    [
        (lambda k: k // 64 % 4 != 3, "the K-step 3 of 4 (of 64) of every K tile is dropped"),
        (lambda k: k >= 256, "is reset for each K tile: only the last (of 256) counts"),
        (lambda k: k >= 448, "nothing is accumulated: only the last K-step (of 64) counts"),
    ],
)
def test_steps_of_k(keep, words):
    data = gemm()
    some = keep(torch.arange(GEMM["k"]))
    parts = [x[:, some] @ y[:, some].T for x, y in matrices(data)]
    assert words in explained(data, torch.stack(parts, 2).half())


# --- what the launches say ------------------------------------------------------------------------


def recorded(output, cta_of, warp_of=None, mma=(128, 128, 1)):
    """A launch whose CTAs stored `output`: cta_of(m, n) -> number or -1, warp_of(m, n) -> warp; out
    of shared memory without warps.
    """
    from types import SimpleNamespace

    from b200.checker.stores import Stores

    stores = Stores()
    stores.mmas[mma] = 1
    stores.copied = warp_of is None
    region = SimpleNamespace(base=output.data_ptr(), size=output.numel() * 2)
    memory = SimpleNamespace(region=lambda *_: region)
    rows, columns, batches = output.shape
    for m in range(rows):
        for n in range(columns):
            if (cta := cta_of(m, n)) < 0:
                continue
            warp = warp_of(m, n) if warp_of else 0
            agent = SimpleNamespace(cta=SimpleNamespace(index=(cta, 0, 0)), index=warp)
            at = [
                output.data_ptr() + 2 * (m * output.stride(0) + n * output.stride(1) + l * s)
                for l in range(batches)
                for s in (output.stride(2),)
            ]
            stores.lanes(memory, agent, np.array(at), 2)
    return SimpleNamespace(stores=stores)


def small(m, n):
    data = generate_input("nvfp4_gemm", m=m, n=n, k=256, l=1, seed=5)
    return data, ref_kernel(data)


def test_rows_of_c_are_rows_of_the_mma_where_warps_share_them():
    data, output = small(256, 128)
    launch = recorded(output, lambda m, n: m // 128, lambda m, n: 4 + m % 128 // 32)
    output[130, 5] += 8
    report = explain(data, output, launches=[launch])[1]
    assert "a CTA has 128 rows x 128 columns of c at a time, MMAs of 128 x 128" in report
    assert "by the warp that stores it: 4: 1, 5: 0, 6: 0, 7: 0" in report
    assert "rows in a tile (M of the MMA): 2: 1 each" in report
    assert "columns in a tile (N of the MMA): 5: 1 each" in report


def test_columns_of_c_are_rows_of_the_mma_by_the_size_of_a_tile(tmp_path):
    data, output = small(64, 256)
    launch = recorded(output, lambda m, n: n // 128, mma=(128, 64, 1))
    output[3, 40] += 8
    report = explain(data, output, tmp_path / "a.html", launches=[launch])[1]
    assert "a CTA has 64 rows x 128 columns of c at a time, MMAs of 128 x 64" in report
    assert "by quarter of tensor memory (column of c / 32 % 4): 0, 1, 0, 0" in report
    assert "columns in a tile (M of the MMA): 40: 1 each" in report
    page = (tmp_path / "a.html").read_text()
    assert "row of c (N of the MMA)" in page and "column of c (M of the MMA)" in page


def test_nothing_is_said_of_sides_that_cannot_be_told():
    data, output = small(128, 128)
    launch = recorded(output, lambda m, n: 0)
    output[3, 40] += 8
    assert "of the MMA)" not in explain(data, output, launches=[launch])[1]


def test_what_no_launch_stored_is_named_whatever_it_holds():
    data, output = small(128, 256)
    launch = recorded(output, lambda m, n: n // 128 if n % 128 < 96 else -1, lambda m, n: m // 32)
    output[:, 96:128] = torch.randn(128, 32, 1).half() * 100
    output[:, 224:] = float("nan")
    report = explain(data, output, launches=[launch])[1]
    assert "explained: all of them were never stored by any launch" in report
    assert "columns 96-127, 224-255)" in report
    assert "a CTA has 128 rows x 128 columns" in report


def test_the_rest_is_explained_where_only_a_part_was_not_stored():
    data, output = small(128, 256)
    launch = recorded(output, lambda m, n: 0 if m < 64 else -1, lambda m, n: m // 32)
    output[64:] = 7
    output[:64] = with_bytes(data, 0, swap_nibbles)[:64]
    report = explain(data, output, launches=[launch])[1]
    assert "never stored by any launch (rows 64-127; columns all 256)" in report
    assert "explained of the others: the two nibbles of each byte of a are swapped" in report


def test_a_tensor_that_no_launch_stores_to():
    data, output = small(128, 128)
    other = torch.empty_like(output)
    launch = recorded(other, lambda m, n: 0)
    output = output + 1
    report = explain(data, output, launches=[launch])[1]
    assert "no launch stored anything to the tensor" in report and "a CTA has" not in report


def test_products_that_are_rounded_before_they_are_combined():
    data = dual()
    p, q = (x.half().float() for x in products(data))
    output = half(torch.nn.functional.silu(p) * q)
    assert "the two products are rounded to fp16 before silu" in explained(data, output)


def test_without_a_record_what_c_held_before_tells():
    data, output = small(128, 256)
    output[:, 64:] = data[6][:, 64:]
    assert "c has there what it had before the call" in explained(data, output)


# --- memory -----------------------------------------------------------------------------------------


def in_memory(output, place):
    """The values of `output` stored at place(m, n) of a row-major c that held 3 before."""
    rows, columns, _ = output.shape
    m, n = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    at = place(m, n).reshape(-1)
    memory = torch.full((rows * columns,), 3.0).half()
    inside = at < memory.numel()
    memory[at[inside]] = output.reshape(-1)[inside]
    return memory.reshape(rows, columns, 1)


def test_columns_first():
    data, output = small(128, 256)
    data[6].fill_(3)
    wrong = in_memory(output, lambda m, n: n * 128 + m)
    assert "c is stored column after column (leading dimension 128)" in explained(data, wrong)


@pytest.mark.parametrize("pitch", [256, 96])
def test_another_leading_dimension(pitch):
    data, output = small(96, 192)
    data[6].fill_(3)
    wrong = in_memory(output, lambda m, n: m * pitch + n)
    text = explained(data, wrong)
    assert f"c is stored with a leading dimension of {pitch}, not 192" in text


def test_rows_of_an_input_as_far_apart_as_elements_are():
    data = gemm()

    def read(raw):  # a row is K bytes behind the one before, not K / 2
        flat = raw.permute(2, 0, 1).reshape(-1)
        l, m, k = torch.meshgrid(*(torch.arange(s) for s in (2, 128, 256)), indexing="ij")
        at = (l * 128 * 256 + m * 512 + k).clamp(max=flat.numel() - 1)
        return flat[at].permute(1, 2, 0)

    text = explained(data, with_bytes(data, 0, read))
    assert "rows of a are read 512 bytes apart, not 256 (K / 2)" in text


@pytest.mark.parametrize("inputs", ["official", "quantized"])
@pytest.mark.parametrize(
    "change, words",
    [
        # [l, row atom, k atom, 32, 4, 4]: the bytes of an atom, taken for other rows and K blocks.
        (lambda x: x.reshape(-1, 128, 4).unflatten(1, (4, 32)), "[row][K block]"),
        (lambda x: x.reshape(-1, 4, 4, 32).permute(0, 2, 3, 1), "[K block][row]"),
        (lambda x: x.reshape(-1, 4, 32, 4).permute(0, 3, 2, 1), "[K block][row % 32][row / 32]"),
    ],
)
def test_other_orders_of_the_scale_atom(change, words, inputs):
    """change: atoms of 512 bytes -> scales as [atom][row / 32][row % 32][K block]."""
    data = generate_input("nvfp4_gemm", **GEMM, inputs=inputs)
    rows, columns, batches = data[3].shape
    memory = data[5].view(torch.uint8).permute(5, 2, 4, 0, 1, 3).contiguous()
    read = change(memory).reshape(batches, rows // 128, columns // 4, 4, 32, 4)
    other = list(clone_data(data))
    scales = read.permute(1, 3, 4, 2, 5, 0).reshape(rows, columns, batches)
    other[3].view(torch.uint8).copy_(scales)
    right, report = explain(data, ref_kernel(tuple(other)), inputs=inputs)
    assert not right
    assert f"scale factors of b are read as if an atom's bytes lay as {words};" in report


def test_permuted_scales_read_as_if_they_were_not():
    data = gemm()
    other = list(clone_data(data))
    memory = data[4].view(torch.uint8).permute(5, 2, 4, 0, 1, 3).reshape(2, 128, 32)
    other[2].view(torch.uint8).copy_(memory.permute(1, 2, 0))
    text = explained(data, ref_kernel(tuple(other)))
    assert "scale factors of a are read out of the permuted tensor as if it were not" in text


# --- what a hypothesis may claim --------------------------------------------------------------------


def test_infinity_explains_nothing():
    """The plain product of the two overflows fp16 everywhere, and c is 5 everywhere."""
    data = dual()
    for i in (3, 4, 5):
        data[i].fill_(448.0)
        data[i + 3].copy_(permute_scales(data[i]))
    output = torch.full_like(ref_kernel(data), 5)
    report = explain(data, output)[1]
    assert "explained" not in report and "known mistakes gives this output" in report


def test_inputs_that_cannot_tell_are_said_to_be_such():
    """With all scales equal, any order of them gives the same."""
    data = gemm()
    for i in (2, 3):
        data[i].fill_(1.0)
        data[i + 2].fill_(1.0)
    data[2][:, ::2] = 2.0
    data[4].copy_(permute_scales(data[2]))
    other = list(clone_data(data))
    other[2].fill_(1.0)
    report = explain(data, ref_kernel(tuple(other)))[1]
    # Every row has the same scales: not to apply them, or ...
    assert "scale factors of a are not applied" in report
    assert "these inputs cannot tell" in report and "`--inputs quantized`" in report


def test_what_is_the_same_on_a_shape_is_one_explanation():
    """Of two K tiles the second alone: the first is dropped, or the sum is reset."""
    data = gemm()
    parts = [x[:, 256:] @ y[:, 256:].T for x, y in matrices(data)]
    report = explain(data, torch.stack(parts, 2).half())[1]
    assert "which here is the same as" in report and "cannot tell" not in report
