"""The order of an instruction's modifiers.

PTX's grammar gives one order; ptxas accepts nearly any, and public programs use that
(`cp.async.bulk.tensor.2d.cta_group::2.shared::cluster...`). Some instructions are looked up by the
beginning or the end of their name: these are brought into the grammar's order once, when they are
parsed. For the others only the set of modifiers matters. Modifiers of one kind keep their order:
the first of two state spaces is the destination's, the first of two types is the result's.
"""

from __future__ import annotations

import re
from functools import lru_cache

from b200.program.module import TYPE_BITS


def _any(*patterns: str) -> re.Pattern:
    return re.compile("|".join(patterns))


_TYPE = _any(*TYPE_BITS, "tf32", r"u?e[0-9]m[0-9]+(x[24])?", r"[us](8|16)x[24]")
_DIMENSION = _any(r"[1-5]d")
_SPACE = _any("global", "shared", "shared::cta", "shared::cluster", "param", "const")
_SEMANTICS = _any("weak", "relaxed", "acquire", "release", "acq_rel", "sc", "volatile")
_SCOPE = _any("cta", "cluster", "gpu", "sys")
_COMPLETION = _any("mbarrier::complete_tx::bytes", "bulk_group")
_MODE = _any("tile", "tile::.*", "im2col", "im2col::.*")
_OPERATION = _any("add", "min", "max", "inc", "dec", "and", "or", "xor")
_HINT = _any("L1::.*", "L2::.*")
_SYNC = _any("sync")
_REST = _any(".*")

# Mnemonic -> the kinds of its modifiers, in the grammar's order (PTX ISA 9.7).
_ORDERS: dict[str, tuple[re.Pattern, ...]] = {
    "cp": (
        _any("reduce", "async", "bulk", "prefetch", "tensor", "mbarrier", "arrive"),
        _any("ca", "cg"),
        _DIMENSION,
        _any("L2"),
        _SPACE,
        _MODE,
        _COMPLETION,
        _any("multicast::cluster"),
        _any("cta_group::[12]"),
        _HINT,
        _OPERATION,
        _REST,
        _TYPE,
    ),
    "fence": (
        _any("proxy", "mbarrier_init"),
        _any("alias", "async", "async::generic", "tensormap::generic"),
        _SEMANTICS,
        _any("sync_restrict::.*"),
        _SPACE,
        _SCOPE,
    ),
    "red": (_any("async"), _SEMANTICS, _SCOPE, _SPACE, _COMPLETION, _OPERATION, _REST, _TYPE),
    "st": (_any("async"), _SEMANTICS, _SCOPE, _SPACE, _COMPLETION, _REST, _any("v[248]"), _TYPE),
    "tensormap": (
        _any("replace", "cp_fenceproxy"),
        _any("tile"),
        _any("global_.*", "rank", "box_dim", "element_stride", "elemtype", ".*_layout", ".*_mode"),
        _SPACE,
        _any("b1024"),
        _REST,
        _TYPE,
    ),
    "mma": (
        _SYNC,
        _any("aligned"),
        _any("m[0-9]+n[0-9]+k[0-9]+"),
        _any("row", "col"),
        _REST,
        _TYPE,
    ),
    "match": (_any("any", "all"), _SYNC, _REST, _TYPE),
    **dict.fromkeys(("shfl", "vote", "redux"), (_SYNC, _REST, _TYPE)),
    **dict.fromkeys(
        ("bar", "barrier"), (_any("cta", "cluster", "warp"), _REST, _any("aligned"), _TYPE)
    ),
    "prmt": (_TYPE, _REST),
}
_PLAIN = (_REST, _TYPE)  # of any other: the types stand last


@lru_cache(maxsize=4096)
def in_order(opcode: str) -> str:
    """The mnemonic with its modifiers in the grammar's order."""
    mnemonic, *modifiers = opcode.split(".")
    kinds = _ORDERS.get(mnemonic, _PLAIN)

    def place(modifier: str) -> int:
        found = [i for i, kind in enumerate(kinds) if kind.fullmatch(modifier)]
        exact = [i for i in found if kinds[i] is not _REST]
        return (exact or found or [len(kinds)])[0]

    return ".".join((mnemonic, *sorted(modifiers, key=place)))
