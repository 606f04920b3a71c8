"""Planted bugs with tensormaps in global memory that plain writes have made: of the device, of the host."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.grid import KEEP, SOURCE, tensormap

ACQUIRE = "fence.proxy.tensormap::generic.acquire.sys [{}], 128;"
PARAMS = ".param .align 64 .b8 map[128], .param .u64 slot, .param .u64 out"


def _start() -> Source:
    """%rd1: a slot for a tensormap in global memory; %rd2: the parameter's generic address."""
    k = Source(PARAMS, 64)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [out];")
    k("ld.param.u64 %rd1, [slot];")
    k("mov.b64 %rd2, map;")
    k("cvta.param.u64 %rd2, %rd2;")
    return k


def _load(k: Source, phase: int = 0, at: int = 0):
    """One thread loads 2 x 32 integers with the tensormap at %rd1."""
    if phase == 0:
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
        k("fence.mbarrier_init.release.cluster;")
    k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 256;")
    k(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        f"[%r1+{at}], [%rd1, {{32, 6}}], [%r1+1024];",
        "load",
    )


def _copy_map(k: Source, words: int = 32):
    """Threads copy the parameter's words to the slot, one each."""

    def copy():
        k("mul.wide.u32 %rd5, %r0, 4;")
        k("add.u64 %rd6, %rd2, %rd5;")
        k("add.u64 %rd7, %rd1, %rd5;")
        k("ld.b32 %r4, [%rd6];")
        k("st.global.b32 [%rd7], %r4;", "write")

    k.only(0, copy, words - 1)


def _finish(k: Source, at: int = 0) -> Source:
    """out[thread] = what was loaded"""
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k(f"ld.shared.u32 %r5, [%r3+{at}];")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def made_here(fence: str, fenced: str = "%rd1") -> Source:
    """Warp 0 writes a tensormap with plain stores, warp 1 loads with it. fence: by the "user" of
    it, by its "maker" after the stores, "early" by the maker before them, or "".
    """
    k = _start()
    acquire = ACQUIRE.format(fenced)
    if fence == "early":
        k.only(0, lambda: k(acquire))
    _copy_map(k)
    if fence == "maker":
        k.only(0, lambda: k("bar.warp.sync -1;"), 31)
        k.only(0, lambda: k(acquire))
    k("bar.sync 0;")

    def load():
        if fence == "user":
            k(acquire)
        _load(k)

    k.only(32, load)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    return _finish(k)


def of_the_host(bug: bool) -> Source:
    """The host has copied the tensormap into the slot."""
    k = _start()

    def load():
        if not bug:
            k(ACQUIRE.format("%rd1"))
        _load(k)

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    return _finish(k)


def copied_over(bug: bool) -> Source:
    """A load uses the slot's tensormap, then threads write another one there, in time or too soon;
    a second load uses that.
    """
    k = _start()

    def first():
        k(ACQUIRE.format("%rd1"))
        _load(k)

    def second():
        k(ACQUIRE.format("%rd1"))
        _load(k, 1, 256)

    k.only(0, first)
    k("bar.sync 0;")
    if not bug:
        k.wait("%r1+1024", 0)
    _copy_map(k)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    k("bar.sync 0;")
    k.only(0, second)
    k.wait("%r1+1024", 1)
    return _finish(k, 256)


def handed_over(bug: bool) -> Source:
    """The first of two CTAs gives a tensormap another address, and sets a flag by a relaxed store;
    the second one polls relaxed, and loads behind its acquire fence. The bug has no release fence.
    """
    k = Source(".param .u64 map, .param .u64 next, .param .u64 flag, .param .u64 out", 64)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(("out", "map", "next", "flag")):
        k(f"ld.param.u64 %rd{i}, [{name}];")
    k("mov.u32 %r2, %ctaid.x;")
    k("setp.ne.u32 %p4, %r2, 0;")
    k("@%p4 bra USE;")

    def edit():
        k("tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;", "edit")
        if not bug:
            k("fence.proxy.tensormap::generic.release.gpu;")
        k("st.relaxed.gpu.global.u32 [%rd3], 1;")

    k.only(0, edit)
    k("bra END;")
    k("USE: ld.relaxed.gpu.global.u32 %r4, [%rd3];")
    k("setp.eq.u32 %p5, %r4, 0;")
    k("@%p5 bra USE;")

    def load():
        k("fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;")
        _load(k)

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    _finish(k)
    k("END: mov.u32 %r99, 0;")
    return k


def _slot(content: bytes) -> int:
    """Address of 128 bytes of global memory with a tensormap in them, a second one after them."""
    raw = torch.zeros(512, dtype=torch.uint8)
    at = -raw.data_ptr() % 128
    for place in (at, at + 128):
        raw[place : place + 128] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    KEEP.append(raw)
    return raw.data_ptr() + at


OTHER = SOURCE + 1000  # what a tensormap describes that is written over


def _arguments():
    other = tensormap(address=OTHER.data_ptr())
    return [tensormap(), _slot(other), torch.zeros(64, dtype=torch.int32)]


def _arguments_of_the_host():
    return [tensormap(), _slot(tensormap()), torch.zeros(64, dtype=torch.int32)]


def _arguments_of_an_edit():
    slot = _slot(tensormap(address=OTHER.data_ptr()))
    return [slot, SOURCE, torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]


def _expected(_args) -> torch.Tensor:
    return SOURCE[6:8, 32:64].reshape(-1)


def made(name: str, title: str, words, fence: str, good: str = "user", **bug) -> PlantedBug:
    """A tensormap that plain stores make. good: the fence of the right kernel."""
    return PlantedBug(
        name,
        title,
        lambda guilty: made_here(fence, **bug) if guilty else made_here(good),
        "tensormap",
        ("used that plain writes of this launch made, without a fence", *words),
        ("load", "write"),
        _arguments,
        _expected,
    )


PLANTED = [
    made(
        "tensormap_stored_without_fence",
        "threads store a tensormap into global memory, and no fence stands before its use",
        ("missing: fence.proxy.tensormap::generic.acquire",),
        fence="",
    ),
    made(
        "tensormap_stored_fence_too_early",
        "the fence stands before the stores of the tensormap (right: after them)",
        ("missing: fence.proxy.tensormap::generic.acquire",),
        fence="early",
        good="maker",
    ),
    made(
        "tensormap_fence_of_another",
        "the fence names the 128 bytes after the tensormap",
        ("its CTA has fenced the 128 bytes at",),
        fence="user",
        fenced="%rd1+128",
    ),
    PlantedBug(
        "tensormap_of_the_host_without_fence",
        "a tensormap that the host has copied into global memory is used without a fence",
        of_the_host,
        "tensormap",
        ("tensormap (portability)", "by the host, or by an earlier launch", "a kernel parameter"),
        ("load",),
        _arguments_of_the_host,
        _expected,
    ),
    PlantedBug(
        "tensormap_handed_over_without_release",
        "a tensormap is edited, and a relaxed flag tells another CTA, without a release fence",
        handed_over,
        "tensormap",
        ("used that another CTA edits, with nothing to order the two",),
        ("load", "edit"),
        _arguments_of_an_edit,
        _expected,
        grid=(2, 1, 1),
    ),
    PlantedBug(
        "tensormap_stored_over_in_flight",
        "a tensormap is written over while a load that uses it is under way",
        copied_over,
        "tensormap",
        ("edited while an operation that uses it is under way",),
        ("write", "load"),
        _arguments,
        _expected,
    ),
]
