"""Tests that fail for a reason of their own, each with the words that it fails with and why.

A test is listed where it is shown that no device would pass it: the package that is installed says
otherwise than the test's checkout, or pytest does. With other words it counts as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.suites.rows import OWN, RAW, WRONG, Row, function_of, short

NEWER = "the package is newer than the test"
_CLOSED = f"{NEWER}: what is closed is refused with words of its own"
_NAMES = f"{NEWER}: cuda.bindings has names that the test does not know"
_REFERENCE = "its reference on torch's CPU is farther from the product in float64 than the kernel"
_COMPILED = "it looks at what the compiler makes, and the package is of another commit"
# a test, or its function -> words of how it ends, and why
_TESTS: Mapping[str, tuple[str, str]] = {
    "tests/graph/test_graph_builder.py::test_graph_complete_after_close_forked": (
        "Regex pattern did not match",
        _CLOSED,
    ),
    "tests/graph/test_graph_builder.py::test_graph_update_after_source_close": (
        "GraphBuilder has been closed",
        _CLOSED,
    ),
    **{
        f"tests/graph/test_graph_definition_lifetime.py::test_{name}_rejected": (
            "Buffer has been closed",
            _CLOSED,
        )
        for name in (
            "memset_closed_buffer",
            "memset_closed_buffer_dst_owner",
            "memcpy_closed_buffer_src_owner",
        )
    },
    "tests/graph/test_graph_definition_mutation.py::test_destroyed_node": (
        "GraphNode has been destroyed",
        _CLOSED,
    ),
    "tests/graph/test_graph_definition_mutation.py::test_cross_graph_edge": (
        "must belong to the same GraphDefinition",
        f"{NEWER}: it refuses what the test wants CUDA to refuse",
    ),
    "tests/test_enum_coverage.py::test_wrapper_covers_all_binding_members": (
        "members, but expected",
        _NAMES,
    ),
    "tests/test_object_protocols.py::test_repr_format": (
        "assert None",
        f"{NEWER}: a LaunchConfig shows more fields",
    ),
    "tests/test_optional_dependency_imports.py::"
    "test_decide_nvjitlink_or_driver_reraises_nested_module_not_found": (
        "assert None is not None",
        f"{NEWER}: it looks for nvJitLink in another way",
    ),
    "tests/test_optional_dependency_imports.py::"
    "test_decide_nvjitlink_or_driver_falls_back_when_module_missing": (
        "DID NOT WARN",
        f"{NEWER}: it looks for nvJitLink in another way",
    ),
    "tests/test_program_cache.py::test_default_cache_dir_lives_under_user_cache_root": (
        "program-cache",
        f"{NEWER}: it takes the system's folder, not the patched one",
    ),
    "tests/test_program.py::test_nvvm_program_options_as_bytes_numba_debug": (
        "--numba-debug",
        f"{NEWER}: an option is written with one dash",
    ),
    "tests/test_program_cache.py::test_filestream_touch_atime_swallows_fstat_failure": (
        "the process died",
        "it takes os.fstat from pytest 9, which captures output with it; so without b200, too",
    ),
    **{
        f"unit/language/test_core.py::test_scaled_dot[{parameters}-4-16-1]": (
            "Tensor-likes are not close",
            _REFERENCE,
        )
        for parameters in (
            "128-128-64-True-True-False-e2m1-e5m2",
            "128-32-128-True-False-False-e4m3-fp16",
            "128-64-128-False-False-True-e4m3-fp16",
        )
    },
    "unit/language/test_compile_only.py::test_compile_only_ws_cluster_barrier_shared_memory": (
        "assert 40 == 24",
        _COMPILED,
    ),
    "unit/language/test_compile_only.py::test_compile_only_dot_mxfp": (
        "does not match the expected pattern",
        _COMPILED,
    ),
    "tests/test_cuda.py::test_char_range": ("has no attribute 'reserved'", _NAMES),
    "tests/test_cuda.py::test_cuda_repr": ("assert ['params'", _NAMES),
}


def judged(row: Row) -> Row:
    """A row as it is, or as one that is the test's own."""
    words, why = _TESTS.get(row.test) or _TESTS.get(function_of(row.test)) or ("", "")
    if row.outcome in (WRONG, RAW) and words and words in row.said:
        return replace(row, outcome=OWN, said=short(why))
    return row
