"""What the four boards and their runner have. Each table says where it stands."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a rule stands: a file of a public repository at a commit."""

    repository: str
    commit: str
    file: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:7]} {self.file}"


def _kernelbot(file: str) -> Source:
    return Source("gpu-mode/kernelbot", "4bdd839ad76eaac0cdab986d30f8d77f989a289b", file)


def _problems(file: str) -> Source:
    commit = "f83cb92a534cc67fa98d7e9813e7f8238abdb4e0"
    return Source("gpu-mode/reference-kernels", commit, f"problems/{file}")


UPLOAD = _kernelbot("src/kernelbot/api/api_utils.py")  # to_submit_info
PREPARE = _kernelbot("src/libkernelbot/submission.py")  # prepare_submission, directives
RUN = _kernelbot("src/libkernelbot/run_eval.py")
REPORT = _kernelbot("src/libkernelbot/report.py")
IMAGE = _kernelbot("src/runners/modal_runner.py")  # the image of the B200 runner
PRECHECK = _kernelbot("src/libkernelbot/kernelguard.py")
BOARDS = _problems("nvidia.yaml")
TASK_YML = _problems("nvidia/nvfp4_gemm/task.yml")
HARNESS = _problems("nvidia/eval_better_bench.py")
CLI = Source(
    "gpu-mode/popcorn-cli", "886932de26ca186f1ba10028dcaa6a18da4bca1b", "src/cmd/submit.rs"
)
GUARD = Source("gpu-mode/kernelguard", "6797d26ddb52f4a7f8d6020af317eda9291359fc", "kernelguard.py")

GPUS = {  # board -> GPUs it takes, in the letters that it compares; BOARDS
    "nvfp4_gemv": ("NVIDIA",),
    "nvfp4_gemm": ("NVIDIA",),
    "nvfp4_dual_gemm": ("NVIDIA",),
    "modal_nvfp4_dual_gemm": ("B200",),
    "nvfp4_group_gemm": ("B200", "NVIDIA"),
}
LIMIT_BYTES = 1_000_000  # UPLOAD
FORBIDDEN = "stream"  # in any case, anywhere in the text; UPLOAD
PYTHON = (3, 13)  # IMAGE
TORCH, DSL = "2.12.0", "4.5.2"  # IMAGE

# Names of the files that lie beside a submission (TASK_YML and its folders), those of all four.
BESIDE = {
    "task": {"input_t", "output_t", "TestSpec"},
    "utils": {
        *("set_seed", "get_device", "verbose_allclose", "verbose_allequal", "match_reference"),
        *("make_match_reference", "DeterministicContext", "clear_l2_cache"),
        "clear_l2_cache_large",
    },
    "reference": {"ref_kernel", "generate_input", "check_implementation", "ceil_div", "to_blocked"}
    | {"sf_vec_size", "create_reordered_scale_factor_tensor"},
    "eval": set[str](),  # what it has is its own business
    "submission": set[str](),
}
OURS = ("b200", "harness", "lab", "tests", "exact_product")

# Modules of the packages that IMAGE installs, and of those that these need (pip's resolver, asked
# for Python 3.13 on 2026-11-26).
_INSTALLED = """
ninja wheel requests packaging numpy pytest _pytest yaml tinygrad helion
cutlass nvidia_cutlass_dsl cuda nvmath nvidia torch torchgen functorch triton
setuptools pkg_resources pip certifi charset_normalizer cloudpickle filecheck filelock fsspec idna
iniconfig jinja2 joblib llvmlite markdown_it markupsafe mdurl mpmath narwhals networkx numba
numba_cuda pluggy psutil pygments rich scipy sklearn sympy threadpoolctl typing_extensions urllib3
"""
# Of the standard library, gone by Python 3.13 (PEP 594, PEP 632, and 3.12's removals).
GONE = frozenset(
    """aifc asynchat asyncore audioop cgi cgitb chunk crypt imghdr imp lib2to3 mailcap msilib nis
    nntplib ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib""".split()
)
CUDA_MODULES = ("bindings", "core", "pathfinder", "tile")  # of cuda-python 13.0 and its like
KNOWN = frozenset(_INSTALLED.split()) | sys.stdlib_module_names - GONE

TVM_FFI = "enable-tvm-ffi"  # an option of cute.compile that needs apache-tvm-ffi, not in IMAGE

LIMITS = (
    "the board stops `python submission.py` alone after 120 s, test, benchmark and ranked runs"
    " after 180 s each (ranked group gemm 300 s), compiles included"
)  # RUN, src/libkernelbot/consts.py; nvfp4_group_gemm/task.yml
