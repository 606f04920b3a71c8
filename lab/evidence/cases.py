"""The launches that SentryWard is asked about, one a mechanism, of sizes that it can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FOUR_CTAS = (4, 2, 1, 1, 1, 1, 1, 1)  # clusters at a time on a chip so small that tiles queue up
PLAIN = {
    "tile_n": 64,
    "swap_ab": True,
    "cta_group": 1,
    "split_k": 1,
    "cluster_n": 1,
    "persistent": False,
}


@dataclass(frozen=True)
class Asked:
    """A case file's line, and how its configuration differs from the plainest one."""

    problem: str
    case: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[int, ...] | None = None

    def config(self, picked: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a configuration like `picked`."""
        return {**picked, **{k: v for k, v in {**PLAIN, **self.fields}.items() if k in picked}}


ASKED = {
    "one CTA": Asked("gemm", "m: 64; n: 128; k: 512; l: 1"),
    "one CTA, stages filled again": Asked("gemm", "m: 64; n: 128; k: 2304; l: 1"),
    "pair": Asked("gemm", "m: 256; n: 256; k: 256; l: 1", {"tile_n": 256, "cta_group": 2}),
    "shared weights": Asked("gemm", "m: 128; n: 128; k: 512; l: 1", {"cluster_n": 2}),
    "K split": Asked("gemm", "m: 64; n: 128; k: 512; l: 1", {"split_k": 2}),
    "dual": Asked("dual", "m: 64; n: 128; k: 512; l: 1"),
    "group": Asked("group", "m: [64, 64]; n: [128, 128]; k: [256, 512]; g: 2"),
    "persistent": Asked("gemm", "m: 64; n: 768; k: 256; l: 1", {"persistent": True}, FOUR_CTAS),
    "persistent group": Asked(
        "group",
        "m: [64, 64]; n: [256, 512]; k: [256, 512]; g: 2",
        {"persistent": True},
        FOUR_CTAS,
    ),
}
