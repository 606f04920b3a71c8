"""Tensormap objects: bits, limits, replacement; packed here word by word from the table."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.copies import tma_box
from b200.chip.copies.tensormap import TensorMap, decode
from b200.errors import Fault, Unsupported
from b200.registry import FULL
from tests.b200.chip.async_support import address, aligned, cluster, run

PLAIN = TensorMap(0x10000, 6, (64, 32), (128,), (32, 8), (1, 1))


def words(t: TensorMap, garbage: int = 0) -> bytes:
    """The object as u64 words, from the documentation's bit table; `garbage` where ignored."""
    rank = len(t.dims)
    dims, box = t.dims + (1,) * (5 - rank), t.box + (1,) * (5 - rank)
    steps, strides = t.steps + (1,) * (5 - rank), t.strides + (0,) * (5 - rank)
    w = [0] * 16
    w[0] = t.address
    w[1] = (
        (garbage & 1) << 1 | (rank - 1) << 4 | t.format << 7 | t.interleave << 11 | t.swizzle << 13
    )
    w[1] |= (
        t.fill_nan << 15
        | t.tf32 << 16
        | (garbage & 3) << 17
        | t.atomicity << 19
        | (garbage & 1) << 21
    )
    low = [s >> 4 & 0xFFFFFFFF for s in strides]
    w[1] |= low[0] << 32
    w[2] = low[1] | low[2] << 32
    w[3] = low[3]
    for i, s in enumerate(strides[:4]):
        w[3] |= s >> 36 << 32 + 4 * i
    w[4] = dims[0] - 1 | dims[1] - 1 << 32
    w[5] = dims[2] - 1 | dims[3] - 1 << 32
    w[6] = dims[4] - 1 | box[0] - 1 << 56
    for i, s in enumerate(steps):
        w[6] |= s - 1 << 32 + 3 * i
    w[7] = sum(b - 1 << 8 * i for i, b in enumerate(box[1:]))
    w[8:] = [garbage] * 8
    return b"".join(x.to_bytes(8, "little") for x in w)


@st.composite
def legal(draw):
    rank = draw(st.integers(1, 5))
    format, unit = draw(
        st.sampled_from(
            [(0, 16), (1, 8), (2, 4), (4, 2), (6, 8), (7, 4), (9, 2), (10, 8), (11, 32)]
        )
    )
    per_dim = lambda s: tuple(draw(s) for _ in range(rank - 1))  # noqa: E731
    return TensorMap(
        address=draw(st.integers(0, 2**48 - 1)) * 16 % 2**57,
        format=format,
        dims=(2 * draw(st.integers(1, 2**30)), *per_dim(st.integers(1, 2**32))),
        strides=per_dim(st.integers(0, 2**36 - 1).map(lambda s: 16 * s)),
        box=(unit, *per_dim(st.integers(1, 256))),
        steps=(draw(st.integers(1, 8)), *per_dim(st.integers(1, 8))),
        swizzle=draw(st.integers(0, 3)),
        fill_nan=format in (6, 7, 9, 10) and draw(st.booleans()),
        tf32=format == 7 and draw(st.booleans()),
    )


@settings(max_examples=100, deadline=None)
@given(legal(), st.integers(0, 2**64 - 1))
def test_decode_reads_the_documented_bits(t, garbage):
    assert decode(words(t, garbage)) == t
    assert decode(t.encode()) == t


REJECTED = [
    (dict(address=0x10008), "global_address 0x10008"),
    (dict(format=14), "elemtype has code 14"),
    (dict(box=(12, 8)), "box_dim of dim0 is 12"),
    (dict(swizzle=1), "fit the 32B swizzle"),
    (dict(interleave=1), "interleave_layout needs rank 3"),
    (dict(interleave=3), "interleave_layout has code 3"),
    (dict(swizzle=2, box=(16, 8), atomicity=1), "swizzle_atomicity 32B needs the 128B"),
    (dict(format=2, box=(4, 8), fill_nan=True), "fill_mode NaN"),
    (dict(format=10, tf32=True), "cannot be rounded to tf32"),
    (dict(format=11, dims=(63, 32)), "global_dim of dim0 is 63: must be even"),
    (dict(format=12, dims=(128, 32), box=(64, 8)), "must be 128 for b4x16_p64"),
    (dict(format=13, dims=(192, 32), box=(128, 8)), "needs a multiple of 128"),
    (dict(format=12, dims=(128, 32), box=(128, 8), swizzle=2), "swizzle_mode 64B"),
    (dict(format=12, dims=(128, 32), strides=(80,), box=(128, 8)), "global_stride of dim1 is 80"),
]


@pytest.mark.parametrize("change, text", REJECTED)
def test_limits_name_the_field(change, text):
    with pytest.raises(Fault, match=text):
        decode(replace(PLAIN, **change).encode())


def test_rank_and_reserved_bits():
    raw = bytearray(PLAIN.encode())
    raw[8] |= 7 << 4
    with pytest.raises(Fault, match="rank is 8"):
        decode(bytes(raw))
    with pytest.raises(Fault, match="not a tensormap"):
        decode(b"\xff" * 128)


def test_a_box_outside_the_allocation_explains_itself():
    machine, _ = cluster()
    base = machine.tensor(aligned(128 * 32 * 3), "tensor x")
    fits = TensorMap(base, 6, (64, 32, 3), (128, 4096), (32, 8, 1), (1, 1, 1))

    def touch(t: TensorMap, *coords: int):
        tma_box.load(t, t.allocation(machine.memory), coords)

    touch(fits, 32, 24, 2)
    more = replace(fits, dims=(64, 32, 4))
    touch(more, 32, 24, 2)  # what is declared and not touched need not be there
    with pytest.raises(Fault, match=r"tensor x .* has only 12288 bytes from there: 4096 too few"):
        touch(more, 0, 0, 3)
    with pytest.raises(Fault, match=r"order dim1 128 B, dim2 4096 B it would fit"):
        touch(replace(fits, strides=(4096, 128)), 32, 24, 2)
    with pytest.raises(Fault, match="without dim2 it would fit"):
        touch(replace(fits, strides=(128, 1 << 30)), 32, 24, 2)
    with pytest.raises(Fault, match="its global address is wrong"):
        touch(replace(fits, address=16), 0, 0, 0)
    fp4 = TensorMap(base, 11, (256, 96), (256,), (256, 1), (1, 1))
    with pytest.raises(Fault, match="taken as elements it would fit"):
        touch(fp4, 0, 95)


REPLACED = [
    ("global_address", "b64", (0x7F0000001230,), dict(address=0x7F0000001230)),
    ("box_dim", "b32", (1, 256), dict(box=(32, 256))),
    ("global_dim", "b32", (0, 2**32 - 1), dict(dims=(2**32 - 1, 32))),
    ("global_stride", "b64", (0, 2**39 + 4096), dict(strides=(2**39 + 4096,))),
    ("element_stride", "b32", (1, 8), dict(steps=(1, 8))),
    ("elemtype", "b32", (10,), dict(format=10)),
    ("elemtype", "b32", (9,), dict(format=9)),
    ("elemtype", "b32", (11,), dict(format=7, tf32=True)),
    ("elemtype", "b32", (13,), dict(format=11)),
    ("swizzle_mode", "b32", (3,), dict(swizzle=3)),
    ("fill_mode", "b32", (1,), dict(fill_nan=True)),
]


@pytest.mark.parametrize("space", ["global", "shared::cta", None])
@pytest.mark.parametrize("field, type, operands, change", REPLACED)
def test_replace(space, field, type, operands, change):
    machine, (warp,) = cluster()
    if space == "global":
        data = aligned(128)
        at = machine.tensor(data)
    else:
        at = address(warp, 128) + ((1 << 56) if space is None else 0)
        data = warp.cta.smem.u8[0x480:0x500]
    data[:] = np.frombuffer(PLAIN.encode(), np.uint8)
    ss = f".{space}" if space else ""
    run(f"tensormap.replace.tile.{field}{ss}.b1024.{type}")(warp, 0, at, *operands)
    assert decode(data.tobytes()) == replace(PLAIN, **change)


def test_replace_rank_and_atomicity():
    machine, (warp,) = cluster()
    data = aligned(128)
    at = machine.tensor(data)
    data[:] = np.frombuffer(replace(PLAIN, swizzle=3).encode(), np.uint8)
    run("tensormap.replace.tile.swizzle_atomicity.global.b1024.b32")(warp, 0, at, 3)
    run("tensormap.replace.tile.rank.global.b1024.b32")(warp, 0, at, 0)
    found = decode(data.tobytes())
    assert (found.atomicity, found.dims) == (3, (64,))


@pytest.mark.parametrize(
    "field, operands, text",
    [
        ("box_dim", (0, 257), "box_dim with 257"),
        ("box_dim", (5, 1), "box_dim with 5"),
        ("global_dim", (1, 0), "global_dim with 0"),
        ("element_stride", (1, 9), "element_stride with 9"),
        ("global_stride", (0, 24), "multiple of 16"),
        ("rank", (5,), "rank with 5"),
        ("elemtype", (16,), "elemtype with 16"),
    ],
)
def test_replace_refuses(field, operands, text):
    machine, (warp,) = cluster()
    at = machine.tensor(aligned(128))
    with pytest.raises(Fault, match=text):
        kind = "b64" if field == "global_stride" else "b32"
        run(f"tensormap.replace.tile.{field}.global.b1024.{kind}")(warp, 0, at, *operands)


def test_replace_of_what_is_not_modelled():
    machine, (warp,) = cluster()
    with pytest.raises(Unsupported, match="no modifier .colour"):
        run("tensormap.replace.tile.colour.global.b1024.b32")
    with pytest.raises(Unsupported, match="96B"):
        f = run("tensormap.replace.tile.swizzle_mode.global.b1024.b32")
        f(warp, 0, machine.tensor(aligned(128)), 4)


def test_edited_object_is_published():
    machine, (warp,) = cluster()
    data = aligned(128)
    at = machine.tensor(data)
    raw = PLAIN.encode()
    warp.cta.smem.u8[0x400:0x480] = np.frombuffer(raw, np.uint8)
    publish = run(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    )
    publish(warp, FULL, np.full(32, at, np.uint64), address(warp, 0), 128)
    assert data.tobytes() == raw
    acquire = run("fence.proxy.tensormap::generic.acquire.gpu")
    acquire(warp, 0, at, 128)
    with pytest.raises(Fault, match="size must be 128"):
        acquire(warp, 0, at, 64)
    with pytest.raises(Fault, match="size must be 128"):
        publish(warp, FULL, at, address(warp, 0), 64)
    with pytest.raises(Fault, match="not aligned to 64"):
        publish(warp, FULL, at, address(warp, 32), 128)
    run("fence.proxy.tensormap::generic.release.gpu")(warp, 0)


def test_prefetch_has_no_effect_but_wants_alignment():
    machine, (warp,) = cluster()
    f = run("prefetch.tensormap")
    f(warp, 0, machine.param(PLAIN.encode()))
    with pytest.raises(Fault, match="multiple of 64"):
        f(warp, 0, machine.param(PLAIN.encode()) + 8)


LIMITS = [  # of each field of tensormap.replace: operands, lowest, highest (PTX ISA 9.7.9.28)
    *(("box_dim", (n,), 1, 256) for n in range(5)),
    *(("global_dim", (n,), 1, 2**32 - 1) for n in range(5)),
    *(("element_stride", (n,), 1, 8) for n in range(5)),
    ("rank", (), 0, 4),
    ("elemtype", (), 0, 15),
    ("interleave_layout", (), 0, 2),
    ("swizzle_mode", (), 0, 3),
    ("swizzle_atomicity", (), 0, 3),
    ("fill_mode", (), 0, 1),
]
# Where a dimension's value lies in the object: bits, and what is stored of it.
PLACES = {
    "box_dim": lambda n: (440 + 8 * n, 8, 1),
    "global_dim": lambda n: (256 + 32 * n, 32, 1),
    "element_stride": lambda n: (416 + 3 * n, 3, 1),
    "rank": lambda: (68, 3, 0),
    "interleave_layout": lambda: (75, 2, 0),
    "swizzle_mode": lambda: (77, 2, 0),
    "swizzle_atomicity": lambda: (83, 2, 0),
    "fill_mode": lambda: (79, 1, 0),
}


@pytest.mark.parametrize("field, dimension, low, high", LIMITS)
def test_replace_takes_all_values_between_its_limits_and_no_other(field, dimension, low, high):
    """It changes the bits of its field, and none around them."""
    machine, (warp,) = cluster()
    data = aligned(128)
    at = machine.tensor(data)
    replace_field = run(f"tensormap.replace.tile.{field}.global.b1024.b32")
    for background in (0, (1 << 1024) - 1):
        for value in (low, low + 1, (low + high) // 2, high - 1, high):
            data[:] = np.frombuffer(background.to_bytes(128, "little"), np.uint8)
            replace_field(warp, 0, at, *dimension, value)
            if field in PLACES:
                first, width, less = PLACES[field](*dimension)
                mask = (1 << width) - 1
                want = background & ~(mask << first) | (value - less) << first
                assert int.from_bytes(data.tobytes(), "little") == want
    beyond = [low - 1] * (low > 0) + [high + 1] * (field != "swizzle_mode")  # its 4: sm_103a's
    for value in beyond:
        with pytest.raises(Fault, match=f"{field} with {value}"):
            replace_field(warp, 0, at, *dimension, value)
