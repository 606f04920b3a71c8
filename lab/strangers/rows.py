"""The published times: kernels of FlashInfer, DeepGEMM and others on a B200, by one method.

Source of published.csv: mlc-ai/TIRx-kernels 51a6c01, bench_suite/baseline.json (its first lines say
how they were measured). The kernels are those that this project's own ones are held against.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).with_name("published.csv")
STEADY = 1.1
OWN = "tir"  # the project's own kernels
SGLANG = "sglang_cutedsl"
CUTE_DSL = "cutedsl"  # how the names of those end that CuTe DSL compiles
DSL = "4.6.0.dev0"  # with this version, as published.csv says
KINDS: Mapping[str, tuple[str, ...]] = {  # kind -> how names of its kernels begin
    "norm": ("rmsnorm", "flashinfer_layernorm", "flashinfer_qk", "flashinfer_fused_dit"),
    "norm with quantisation": ("flashinfer_",),
    "quantisation": ("mxfp4_", "mxfp8_", "nvfp4_quantize", "silu_and_mul_nvfp4"),
    "activation": ("act_and_mul",),
    "top-k": ("fast_topk", "filtered_topk", "radix_topk"),
    "GDN decode": ("gdn_decode",),
    "GDN prefill": ("gdn_",),
    "KDA decode": ("flashkda_decode", "recurrent_kda"),
    "KDA prefill": ("flashkda_",),
    "state update": ("selective_state_update",),
    "skinny GEMM": ("tinygemm2",),
    "NVFP4 GEMM": ("nvfp4_gemm",),
    "BF16 GEMM": ("fp16_bf16_gemm",),
    "attention": ("flash_attention", "sparse_flashmla", "msa_"),
    "FP8 logits": (
        "deepgemm_sm100_fp8_mqa",
        "deepgemm_sm100_fp8_paged",
        "deepgemm_sm100_fp4_paged",
    ),
    "FP8 GEMM": ("deepgemm_", "sm100_fp8_fp4"),
}
BINARIES = ("cublaslt_nvfp4", "torch-cublas", "deepgemm-cublaslt", "trtllm_gen")
CUDNN = ("nvfp4_gemm", "flashinfer")  # the file names the runner that was tuned
EXTENSIONS = ("flashkda_raw", "flashmla")
ABSENT = ("msa",)


@dataclass(frozen=True)
class Row:
    """A published time. kernel, config: as the project's benchmark names them. implementation:
    whose kernel it is. published_us: of the kernel, as CUPTI shows it, behind a memset: the mean of
    five rounds, of which fastest_us and slowest_us are two.
    """

    kernel: str
    config: str
    implementation: str
    published_us: float
    fastest_us: float
    slowest_us: float

    @property
    def steady(self) -> bool:
        """Whether the rounds agree, so that their mean says what the kernel takes."""
        return self.slowest_us <= STEADY * self.fastest_us

    @property
    def kind(self) -> str:
        """The first of KINDS that names this kernel; KeyError for one that none names."""
        for kind, beginnings in KINDS.items():
            if self.kernel.startswith(beginnings):
                return kind
        raise KeyError(self.kernel)

    @property
    def left_out(self) -> str:
        """Why it has no modelled time, in a word: CPU time where nothing else hinders one."""
        if self.implementation in BINARIES or (self.kernel, self.implementation) == CUDNN:
            return "binary without PTX"
        if self.implementation in EXTENSIONS:
            return "C++ extension to be built"
        return "package not to be had" if self.implementation in ABSENT else "CPU time"

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.config} {self.implementation}"


def read(path: Path = PUBLISHED) -> list[Row]:
    """The rows."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        Row(
            kernel=found["kernel"],
            config=found["config"],
            implementation=found["implementation"],
            published_us=float(found["us"]),
            fastest_us=float(found["fastest"]),
            slowest_us=float(found["slowest"]),
        )
        for found in csv.DictReader(lines)
    ]
