"""Device code out of a fat binary, as nvcc and its linker put it into a host object.

The layout is not documented by NVIDIA; it is the one that cuobjdump and LLVM's clang-linker-wrapper
agree on: a wrapper {magic, version, data, more} points at a header {magic, version, header size,
size}, and entries follow, each {kind, version, header size, size, ...} and its bytes. In a wrapper
of version 2, which the device linker writes, `data` is machine code, and `more` a list of fat
binaries, one an object, that ends with a null pointer.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from b200.errors import EmulatorError
from b200.host import refusals
from b200.host.poke import peek
from b200.host.refusals import Refused, unsupported

_WRAPPER, _FAT = 0x466243B1, 0xBA55ED50
HEADS = (struct.pack("<I", _WRAPPER), struct.pack("<I", _FAT))  # what an image of one begins with
ELF = b"\x7fELF"  # and one of machine code
_LINKED = 2  # version of a wrapper
_PTX = 1  # kind of an entry
_LZ4, _ZSTD = 0x2000, 0x8000  # flags of an entry
FRAME_SIZE, REGCOUNT = 0x11, 0x2F  # EIATTR_*, of .nv.info
_SIZED = 4  # the format of an attribute with bytes behind it
_TARGET = re.compile(r"^\s*\.target\s+(sm_\d+[af]?)", re.M)
ADVICE = "compile it with -gencode arch=compute_100a,code=[compute_100a,sm_100a]"


@dataclass(frozen=True)
class Image:
    """The code of a module. texts: its PTX, one an object that was linked, [] where it has no code.
    registers: of a thread, by kernel, where there is machine code for a B200.
    """

    texts: list[str]
    registers: dict[str, int]


@dataclass(frozen=True)
class _Entry:
    is_ptx: bool
    arch: int
    data: bytes


def image_of(at: int) -> Image:
    """The code for a B200 of the fat binary, or of its wrapper, at an address. EmulatorError where
    there is none that can be run.
    """
    parts = [list(_entries(part)) for part in _parts(at)]
    texts = [chosen for part in parts if (chosen := _best(part)) is not None]
    if not texts and any(parts):
        raise _none_fits([entry for part in parts for entry in part])
    registers: dict[str, int] = {}
    for entry in (entry for part in reversed(parts) for entry in part):
        if not entry.is_ptx and entry.arch == 100:  # the linked code comes last: it is what runs
            told = resources(entry.data)
            registers |= {kernel: of[REGCOUNT] for kernel, of in told.items() if REGCOUNT in of}
    return Image(texts, registers)


def _parts(at: int) -> Iterator[int]:
    """Addresses of the fat binaries of a wrapper."""
    magic, version, data, more = peek(at, "<IIQQ")
    if magic != _WRAPPER:
        yield at
        return
    yield data
    while version == _LINKED and more and (part := peek(more, "<Q")[0]):
        yield part
        more += 8


def _entries(data: int) -> Iterator[_Entry]:
    magic, _, header, size = peek(data, "<IHHQ")
    if magic != _FAT:
        raise unsupported(f"a fat binary with the magic number {magic:#x}")
    at, end = data + header, data + header + size
    while at < end:
        head = ctypes.string_at(at, 64)
        kind, _, header, size, packed = struct.unpack_from("<HHIQI", head)
        (arch,), (flags,) = struct.unpack_from("<I", head, 28), struct.unpack_from("<Q", head, 40)
        bytes_ = ctypes.string_at(at + header, size)
        if flags & (_LZ4 | _ZSTD):
            (whole,) = struct.unpack_from("<Q", head, 56)
            bytes_ = _unpacked(bytes_[:packed], whole, flags)
        yield _Entry(kind == _PTX, arch, bytes_)
        at += header + size


def _unpacked(data: bytes, size: int, flags: int) -> bytes:
    zstd = bool(flags & _ZSTD)
    name = "libzstd.so.1" if zstd else "liblz4.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        raise unsupported(
            f"the program's PTX is compressed and {name} is missing: install it, or compile with"
            " -Xfatbin -no-compress (nvcc 12) or --no-compress (nvcc 13)"
        ) from None
    out = ctypes.create_string_buffer(size)
    if zstd:
        library.ZSTD_decompress.restype = ctypes.c_size_t
        got = library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    else:
        got = library.LZ4_decompress_safe(data, out, len(data), size)
    if got != size:
        raise unsupported(f"a compressed entry of a fat binary ({flags:#x})")
    return out.raw


def _best(part: list[_Entry]) -> str | None:
    """The PTX that a B200's driver would compile: of the chip, its family, else the newest."""
    texts = [entry.data.rstrip(b"\0").decode() for entry in part if entry.is_ptx]
    targets = [(match[1], text) for text in texts if (match := _TARGET.search(text))]
    ranked = [(found, text) for target, text in targets if (found := rank(target)) is not None]
    return max(ranked, default=(None, None), key=lambda pair: pair[0])[1]


def rank(target: str) -> tuple[int, bool, bool] | None:
    """How well PTX for a target suits a B200; None for what it does not run. PTX of sm_N runs on
    what came later, of sm_Na on that chip, of sm_Nf on its family (PTX ISA, `.target`).
    """
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    if match is None:
        return 0, False, False
    number, suffix = int(match[1]), match[2]
    if (number != 100) if suffix else (number > 100):
        return None
    return number, suffix == "a", suffix == "f"


def _none_fits(entries: list[_Entry]) -> EmulatorError:
    kinds = {True: "PTX", False: "machine code"}
    names = [f"{kinds[x.is_ptx]} for sm_{x.arch}" for x in entries]
    has = ", ".join(dict.fromkeys(names))
    if any(not entry.is_ptx and entry.arch == 100 for entry in entries):
        said = f"the program has no PTX that a B200 runs, only {has}: {ADVICE}"
        return unsupported(said)
    said = f"no kernel image for this device: the program has {has}: {ADVICE}"
    return Refused(refusals.NO_KERNEL_IMAGE, said)


def resources(cubin: bytes) -> dict[str, dict[int, int]]:
    """What ptxas says of each kernel in a file of machine code: REGCOUNT, registers of a thread,
    and FRAME_SIZE, its bytes of stack. `.nv.info` has entries of a format, an attribute and a size,
    then (symbol, value).
    """
    if cubin[:4] != ELF:
        return {}
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQII", cubin, table + size * i) for i in range(count)]

    def string(section: int, at: int) -> str:
        start = heads[section][4] + at
        return cubin[start : cubin.index(b"\0", start)].decode()

    by_name = {string(names, head[0]): head for head in heads}
    if ".nv.info" not in by_name or ".symtab" not in by_name:
        return {}
    _, _, _, _, symbols, _, strings, _ = by_name[".symtab"]
    _, _, _, _, at, nbytes, _, _ = by_name[".nv.info"]
    found: dict[str, dict[int, int]] = {}
    end = at + nbytes
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, at)
        if form == _SIZED and attribute in (FRAME_SIZE, REGCOUNT):
            symbol, value = struct.unpack_from("<II", cubin, at + 4)
            (name,) = struct.unpack_from("<I", cubin, symbols + 24 * symbol)
            found.setdefault(string(strings, name), {})[attribute] = value
        at += 4 + (size if form == _SIZED else 0)
    return found
