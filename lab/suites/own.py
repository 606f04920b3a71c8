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
# function of a test -> words of how it ends, and why
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
    "tests/test_cuda.py::test_char_range": ("has no attribute 'reserved'", _NAMES),
    "tests/test_cuda.py::test_cuda_repr": ("assert ['params'", _NAMES),
}


def judged(row: Row) -> Row:
    """A row as it is, or as one that is the test's own."""
    words, why = _TESTS.get(function_of(row.test), ("", ""))
    if row.outcome in (WRONG, RAW) and words and words in row.said:
        return replace(row, outcome=OWN, said=short(why))
    return row
