"""Tensors on "cuda" are aligned as by PyTorch's CUDA allocator.

That hands out blocks of 512 bytes, and programs count on it: they declare 128 bytes to a compiler,
test `data_ptr() % 128`, encode TMA descriptors. torch's allocator for the CPU aligns to 64. So the
memory of a storage is exchanged for memory that begins at a multiple of 512, before the program
sees the tensor. The storage stays the object it is: views and tensors that autograd saved share it.
"""

from __future__ import annotations

import ctypes
import functools
import sys

import torch

ALIGNMENT = 512  # bytes; kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp
_CPU_ALIGNMENT = 64  # bytes; gAlignment of c10/core/alignment.h
# c10::StorageImpl begins with its table of virtual functions, two reference counts in one word, and
# c10::DataPtr: the address, and what frees it: a context and a function, in the order of the C++
# library's std::unique_ptr; then the device. The size in bytes follows.
_DATA, _END, _SIZE = 2, 5, 6  # words
UNKNOWN = (
    "b200: tensors on cuda begin at multiples of 64 bytes, not 512: a storage of torch {} is not"
    " laid out as c10::StorageImpl was"
)


def align(tensor: torch.Tensor, keep: bool = True) -> None:
    """Move a tensor's memory to a multiple of ALIGNMENT unless it is there, or is none of torch's
    own (a numpy array, shared memory). keep: its contents, too.
    """
    storage = torch.Tensor.untyped_storage(tensor)
    address = storage.data_ptr()
    if address % ALIGNMENT == 0 or not _is_as_known():
        return
    ours = _data_pointer(storage)
    if ours[0] != address or address not in ours[1:]:
        return
    nbytes = storage.nbytes()
    spare = torch.UntypedStorage(nbytes + ALIGNMENT - _CPU_ALIGNMENT)
    aligned = -(-spare.data_ptr() // ALIGNMENT) * ALIGNMENT
    if keep:
        ctypes.memmove(aligned, address, nbytes)
    theirs = _data_pointer(spare)
    ours[:], theirs[:] = [aligned, *theirs[1:]], ours[:]


@functools.cache
def _is_as_known() -> bool:
    """Whether two storages have their address twice, the same function that frees them, and their
    size, where they are looked for. Says so, once, if not.
    """
    sizes = (4096 + 64, 8192 + 64)
    storages = [torch.UntypedStorage(size) for size in sizes]
    try:
        words = [_words(storage, _SIZE + 1) for storage in storages]
    except AttributeError:  # _cdata
        words = []
    frees = []
    for storage, found in zip(storages, words):
        address = storage.data_ptr()
        if found[_DATA] == address and found[_SIZE] == storage.nbytes():
            frees += [word for word in found[_DATA + 1 : _END] if word != address]
    known = len(frees) == len(sizes) and len(set(frees)) == 1
    if not known:
        print(UNKNOWN.format(torch.__version__), file=sys.stderr)
    return known


def _data_pointer(storage: torch.UntypedStorage) -> ctypes.Array:
    """The three words of a storage's c10::DataPtr."""
    return _words(storage, _END - _DATA, _DATA)


def _words(storage: torch.UntypedStorage, count: int, first: int = 0) -> ctypes.Array:
    start = storage._cdata + first * ctypes.sizeof(ctypes.c_uint64)
    return (ctypes.c_uint64 * count).from_address(start)
