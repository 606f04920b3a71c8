"""A wrong output is explained by what the launches stored where."""

from __future__ import annotations

import numpy as np
import torch

from harness.diagnosis.diff import explain
from tests.harness.diff_support import (
    dual,
    explained,
    half,
    products,
    small,
    swap_nibbles,
    with_bytes,
)


def recorded(output, cta_of, warp_of=None, mma=(128, 128, 1)):
    """A launch whose CTAs stored `output`: cta_of(m, n) -> number or -1, warp_of(m, n) -> warp; out
    of shared memory without warps.
    """
    from types import SimpleNamespace

    from b200.checker.memory.last_writers import LaunchStores

    stores = LaunchStores()
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
