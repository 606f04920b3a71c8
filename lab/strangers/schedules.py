"""DeepGEMM's schedule of paged logits, which sglang's kernel reads.

DeepGEMM is a C++ extension that has to be built. The benchmark of sglang's kernel needs one input
of it: which keys each SM takes. DeepGEMM (csrc/apis/attention.hpp and its kernel
paged_mqa_logits_metadata) deals the keys of all queries out to the SMs, in splits, evenly.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

SPLIT = 256  # keys in a split


def schedule(lengths: torch.Tensor, _page: int, sms: int, _indices: Any = None) -> torch.Tensor:
    """int32[sms + 1, 2]: the query and its split with which each SM begins, and where the last one
    ends. lengths: int32[queries] or [queries, tokens], keys of each query; the last token has all.
    """
    splits = [-(-int(keys) // SPLIT) for keys in lengths.reshape(len(lengths), -1)[:, -1].tolist()]
    each, more = divmod(sum(splits), sms)
    found = []
    for sm in range(sms + 1):
        first, query = sm * each + min(sm, more), 0
        while query < len(splits) and first >= splits[query]:
            first -= splits[query]
            query += 1
        found.append((query, first))
    return torch.tensor(found, dtype=torch.int32).to(lengths.device)


def prepare() -> None:
    """A module deep_gemm that has the schedule, and whose own kernel does nothing."""
    module: Any = types.ModuleType("deep_gemm")
    module.get_paged_mqa_logits_metadata = schedule
    module.fp8_fp4_paged_mqa_logits = lambda *_args, **_kwargs: True
    sys.modules[module.__name__] = module
