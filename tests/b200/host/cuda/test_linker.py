"""The driver's linker of PTX: what it says of modules that do not fit."""

import ctypes

import pytest

from b200.host.cuda.driver import Driver
from b200.host.refusals import INVALID_PTX, Refused

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"
NAMES_IT = HEAD + ".visible .entry other_kernel()\n{\nret;\n}\n"
CALLS_IT = f"""{HEAD}
.extern .func other
(
)
;
.visible .entry calls()
{{
{{
call.uni
other,
(
);
}}
ret;
}}
"""


def words(texts: list[str]) -> tuple[int, list]:
    """Where addresses of texts lie, and what has to live as long."""
    kept = [ctypes.create_string_buffer(text.encode()) for text in texts]
    places = (ctypes.c_uint64 * len(kept))(*map(ctypes.addressof, kept))
    return ctypes.addressof(places), [kept, places]


def test_an_undefined_function_is_said_of_the_module_that_calls_it():
    """A name that is a part of another one is not the other one. The words are libnvJitLink's."""
    texts, kept = words([NAMES_IT, CALLS_IT])
    names, kept_too = words(["first", "second"])
    with pytest.raises(Refused, match="Undefined reference to 'other' in 'second'") as refused:
        Driver.link_ptx(None, texts, names, 2, 0)  # type: ignore[arg-type]
    assert refused.value.code == INVALID_PTX
    del kept, kept_too
