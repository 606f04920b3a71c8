"""What the kit's nvcc makes of the arguments that a build gives to nvcc."""

from __future__ import annotations

import pytest

from b200.compiled.nvcc import rewritten, without_kit

BOTH = "-gencode=arch=compute_100a,code=[compute_100a,sm_100a]"


@pytest.mark.parametrize(
    "given, kept",
    [
        ("-c x.cu -o x.o", "-c x.cu -o x.o"),
        ("-arch=sm_90a -c x.cu", "-c x.cu"),
        ("-arch sm_75 -code compute_75 -c x.cu", "-c x.cu"),
        ("--generate-code=arch=compute_90,code=[compute_90,sm_90] -G -dc x.cu", "-dc x.cu"),
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 x.cu", "x.cu"),
        ("--cudart static -dlto x.o -lcudart_static", "x.o -lcudart_static"),
        ("-arch=sm_80 -cubin x.cu -o x", "-fatbin x.cu -o x"),
    ],
)
def test_architectures_and_the_runtime_are_replaced(given, kept):
    words = rewritten(given.split(), "/kit/lib64")
    assert words == [BOTH, "-lineinfo", "-cudart", "shared", "-L/kit/lib64", *kept.split()]


def test_ptx_alone():
    assert rewritten(["-ptx", "x.cu"], "/k")[0] == "-arch=compute_100a"


def test_a_question_is_passed_on():
    assert rewritten(["--version"], "/k") == ["--version"]


def test_programs_of_nvcc_do_not_meet_the_kit():
    before = {
        "LD_PRELOAD": "/k/lib64/libcudart.so.13:/a.so",
        "LD_LIBRARY_PATH": "/k/lib64",
        "A": "1",
    }
    assert without_kit(before, "/k/lib64") == {"LD_PRELOAD": "/a.so", "A": "1"}
    assert without_kit({}, "/k/lib64") == {}
