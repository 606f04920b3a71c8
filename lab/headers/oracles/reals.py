"""The functions of the CUDA guide's tables of errors (Mathematical Functions Appendix): their exact
values by long double of the host's C library, or by mpmath where it has none.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from lab.headers.judge import Expected, Near, Words, kind_of
from lab.headers.programs import Call
from lab.headers.values import FLOATS, THREADS, floats


@dataclass(frozen=True)
class Real:
    """c: an expression of C on long double x, y, z, w (and int n for the parameter that is one).
    single, double: documented ulp of the float and of the double. beyond: the largest absolute
    error of both where the ulp do not hold, and where they do.
    """

    c: str
    single: float
    double: float
    beyond: tuple[float, float] = (0.0, 0.0)
    holds: Callable[[np.ndarray], np.ndarray] | None = None


def _below8(x: np.ndarray) -> np.ndarray:
    return np.abs(x) < 8


BESSEL = (2.2e-6, 5e-12)
REALS: dict[str, Real] = {
    "rsqrt": Real("1 / sqrtl(x)", 2, 1),
    "sqrt": Real("sqrtl(x)", 0, 0),
    "cbrt": Real("cbrtl(x)", 1, 1),
    "rcbrt": Real("1 / cbrtl(x)", 1, 1),
    "hypot": Real("hypotl(x, y)", 3, 2),
    "rhypot": Real("1 / hypotl(x, y)", 2, 1),
    "norm3d": Real("hypotl(hypotl(x, y), z)", 3, 2),
    "rnorm3d": Real("1 / hypotl(hypotl(x, y), z)", 2, 1),
    "norm4d": Real("hypotl(hypotl(x, y), hypotl(z, w))", 3, 2),
    "rnorm4d": Real("1 / hypotl(hypotl(x, y), hypotl(z, w))", 2, 1),
    "exp": Real("expl(x)", 2, 1),
    "exp2": Real("exp2l(x)", 2, 1),
    "exp10": Real("exp10l(x)", 2, 1),
    "expm1": Real("expm1l(x)", 1, 1),
    "log": Real("logl(x)", 1, 1),
    "log2": Real("log2l(x)", 1, 1),
    "log10": Real("log10l(x)", 2, 1),
    "log1p": Real("log1pl(x)", 1, 1),
    "sin": Real("sinl(x)", 2, 2),
    "cos": Real("cosl(x)", 2, 2),
    "tan": Real("tanl(x)", 4, 2),
    "sinpi": Real("sin_pi(x)", 1, 2),
    "cospi": Real("cos_pi(x)", 1, 2),
    "asin": Real("asinl(x)", 2, 2),
    "acos": Real("acosl(x)", 2, 2),
    "atan": Real("atanl(x)", 2, 2),
    "atan2": Real("atan2l(x, y)", 3, 2),
    "sinh": Real("sinhl(x)", 3, 2),
    "cosh": Real("coshl(x)", 2, 1),
    "tanh": Real("tanhl(x)", 2, 1),
    "asinh": Real("asinhl(x)", 3, 3),
    "acosh": Real("acoshl(x)", 4, 3),
    "atanh": Real("atanhl(x)", 3, 2),
    "pow": Real("powl(x, y)", 4, 2),
    "powi": Real("powl(x, n)", 4, 2),
    "erf": Real("erfl(x)", 2, 2),
    "erfc": Real("erfcl(x)", 4, 5),
    "erfinv": Real("", 2, 5),
    "erfcinv": Real("", 4, 6),
    "erfcx": Real("", 4, 4),
    "normcdf": Real("erfcl(-x * sqrtl(0.5L)) / 2", 5, 5),
    "normcdfinv": Real("", 5, 8),
    "lgamma": Real("lgammal(x)", 6, 4, (0, 0), lambda x: (x < -24) | (x > -2.2637)),
    "tgamma": Real("tgammal(x)", 5, 10),
    "j0": Real("j0l(x)", 9, 7, BESSEL, _below8),
    "j1": Real("j1l(x)", 9, 7, BESSEL, _below8),
    "jn": Real("jnl(n, x)", 0, 0, (2.2e-6, 5e-11), lambda x: x != x),  # for n of at most 128
    "y0": Real("y0l(x)", 9, 7, BESSEL, _below8),
    "y1": Real("y1l(x)", 9, 7, BESSEL, _below8),
    "yn": Real("ynl(n, x)", 25, 25, (2.2e-6, 5e-11)),  # 2 + 2.5 n below n; n is at most 9 here
    "cyl_bessel_i0": Real("", 6, 6),
    "cyl_bessel_i1": Real("", 6, 6),
    "quotient": Real("x / y", 2, 0),
}

_HEAD = """
#include <math.h>
extern "C" {
static const long double PI = 3.14159265358979323846264338327950288L;
static long double sin_pi(long double x) {
  long double r = remainderl(x, 2.0L), t = fabsl(r);
  return copysignl(sinl(PI * (t > 0.5L ? 1.0L - t : t)), x == 0 || t == 1 || t == 0 ? x : r);
}
static long double cos_pi(long double x) {
  long double t = fabsl(remainderl(x, 2.0L));
  return t <= 0.25L ? cosl(PI * t) : t <= 0.75L ? sinl(PI * (0.5L - t)) : -cosl(PI * (1.0L - t));
}
"""
_BODY = """void %s(const long double* xs, const long double* ys, const long double* zs,
  const long double* ws, const int* ns, long double* out, int count) {
  for (int i = 0; i < count; i++) {
    long double x = xs[i], y = ys[i], z = zs[i], w = ws[i]; int n = ns[i];
    (void)x; (void)y; (void)z; (void)w; (void)n;
    out[i] = %s;
  }
}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    """The expressions of REALS, compiled by the host's C++ compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "reals.cpp"), Path(folder, "reals.so")
        functions = (_BODY % (f"exact_{name}", real.c) for name, real in REALS.items() if real.c)
        source.write_text(_HEAD + "".join(functions) + "}\n")
        command = [
            "c++",
            "-O1",
            "-shared",
            "-fPIC",
            "-D_GNU_SOURCE",
            "-o",
            str(library),
            str(source),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(library))


def _by_c(name: str, columns: list[np.ndarray], n: np.ndarray) -> np.ndarray:
    size = len(n)
    padded = [c.astype(np.longdouble) for c in columns]
    padded += [np.zeros(size, np.longdouble)] * (4 - len(padded))
    out = np.zeros(size, np.longdouble)
    arrays = (*map(np.ascontiguousarray, padded), n.astype(np.int32), out)
    getattr(_library(), f"exact_{name}")(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), size)
    return out


def _erfcinv(x: Any) -> Any:
    """By Newton from erfinv where 1 - x keeps its digits, else from the asymptote."""
    if x > mpmath.mpf("1e-3"):
        return mpmath.erfinv(1 - x)
    start = mpmath.sqrt(-mpmath.log(x * mpmath.sqrt(mpmath.pi * -mpmath.log(x))))
    return mpmath.findroot(lambda t: mpmath.log(mpmath.erfc(t)) - mpmath.log(x), start)


_BY_MPMATH: dict[str, Callable[[Any], Any]] = {
    "erfinv": mpmath.erfinv,
    "erfcinv": _erfcinv,
    "normcdfinv": lambda x: (
        -mpmath.sqrt(2) * (_erfcinv(2 * x) if x < 0.5 else mpmath.erfinv(1 - 2 * x))
    ),
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "cyl_bessel_i0": lambda x: mpmath.besseli(0, x),
    "cyl_bessel_i1": lambda x: mpmath.besseli(1, x),
}


def _by_mpmath(name: str, column: np.ndarray) -> np.ndarray:
    found = []
    with mpmath.workdps(40):
        for x in map(float, column):
            value = _BY_MPMATH[name](mpmath.mpf(x))
            high = float(value)
            low = float(value - high) if np.isfinite(high) else 0.0
            found.append(np.longdouble(high) + np.longdouble(low))
    return np.array(found, np.longdouble)


def exact(name: str, columns: list[np.ndarray], n: np.ndarray) -> np.ndarray:
    """name: of REALS. columns: float64 operands. n: of an operand that is an int."""
    with np.errstate(all="ignore"):
        return _by_c(name, columns, n) if REALS[name].c else _by_mpmath(name, columns[0])


# CUDA guide, Intrinsic Functions: the base, and what is said of the error of a float x.
def _scaled(base: float, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: base + np.floor(np.abs(factor * x))


INTRINSICS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray] | float, float]] = {
    "__expf": ("exp", _scaled(2, 1.173), 0),
    "__exp10f": ("exp10", _scaled(2, 2.97), 0),
    "__logf": ("log", 3, 2.0**-21.41),
    "__log2f": ("log2", 2, 2.0**-22),
    "__log10f": ("log10", 3, 2.0**-24),
    "__sinf": ("sin", 0, 2.0**-21.41),
    "__cosf": ("cos", 0, 2.0**-21.19),
    "__tanhf": ("tanh", 2.0**13, 0),  # a relative error of 2^-11
}
# With two operands: x / y within 2^-126 < |y| < 2^126, exp2f(y * __log2f(x)), __sinf / __cosf.
PAIRS = {"fdividef": ("quotient", 2.0), "__fdividef": ("quotient", 2.0)}
DERIVED = {"__powf": "pow", "__tanf": "tan"}  # the guide names how, and no bound
NORM = 4.0  # the guide: cannot be bounded, as the sum is as the caller's; 4 numbers here
UNBOUNDED = 256.0  # of what the guide gives no bound for: 2^-16, so that a wrong formula shows
_SINCOS = re.compile(r"(?:__)?sincos(?P<pi>pi)?(?P<single>f)?$")


def _operands(call: Call, given: Words) -> tuple[list[np.ndarray], np.ndarray]:
    columns, n = [], np.zeros(THREADS, np.int32)
    for i, role in enumerate(call.roles):
        kind = kind_of(call, f"p{i}")
        if role == "in" and kind.kind in FLOATS:
            columns.append(floats(given[f"p{i}"], kind.kind)[:, 0])
        elif role == "in":
            n = given[f"p{i}"][:, 0].view(np.int32)
    return columns, n


def _of(call: Call) -> str:
    """The row of REALS that a function of the header is, or ""."""
    name = call.function.name
    if name == "pow" and [p.type for p in call.function.parameters][1:] == ["int"]:
        return "powi"
    if name in REALS:
        return name
    return name[:-1] if name.endswith("f") and name[:-1] in REALS else ""


def expected(call: Call, given: Words) -> Expected | None:
    name = call.function.name
    if match := _SINCOS.match(name):
        return _sine_and_cosine(call, given, match["pi"] or "", name.startswith("__"))
    if re.match(r"r?normf?$", name):
        return _norm(call, given, name[0] == "r")
    if name in INTRINSICS:
        base, ulp, absolute = INTRINSICS[name]
        columns, n = _operands(call, given)
        bound = ulp(columns[0]) if callable(ulp) else ulp
        bound = np.broadcast_to(np.asarray(bound, float), (THREADS,))[:, None]
        near = Near(exact(base, columns, n)[:, None], np.nan_to_num(bound, posinf=0), absolute)
        return Expected({}, "long double", {"r": near})
    if name in PAIRS or name in DERIVED:
        base, ulp = PAIRS.get(name) or (DERIVED[name], UNBOUNDED)
        columns, n = _operands(call, given)
        return Expected({}, "long double", {"r": Near(exact(base, columns, n)[:, None], ulp)})
    base = _of(call)
    if (
        not base
        or call.result not in ("float", "double")
        or not REALS[base].c
        and base not in _BY_MPMATH
    ):
        return None
    real, (columns, n) = REALS[base], _operands(call, given)
    single = call.result == "float"
    ulp = np.full(THREADS, real.single if single else real.double)
    absolute = np.full(THREADS, real.beyond[0 if single else 1])
    if real.holds is not None:
        inside = real.holds(columns[0])
        ulp = np.where(inside, ulp, 0)
        absolute = np.where(inside, 0, absolute)
    near = Near(exact(base, columns, n)[:, None], ulp[:, None], absolute[:, None])
    source = "long double" if real.c else "mpmath"
    return Expected({}, source, {"r": near})


def _norm(call: Call, given: Words, inverse: bool) -> Expected:
    """Of the n numbers from the thread's own cell on."""
    kind = kind_of(call, "r")
    cells = floats(given["p1"], kind.kind)[:, 0].astype(np.longdouble)
    with np.errstate(all="ignore"):
        sums = [(cells[i : i + n] ** 2).sum() for i, n in enumerate(given["p0"][:, 0].tolist())]
        root = np.sqrt(np.array(sums, np.longdouble))
        root = 1 / root if inverse else root
    return Expected({}, "long double", {"r": Near(root[:, None], NORM)})


def _sine_and_cosine(call: Call, given: Words, pi: str, intrinsic: bool) -> Expected:
    columns, n = _operands(call, given)
    single = kind_of(call, "p1").kind == "f32"
    near = {}
    for array, name in (("p1", f"sin{pi}"), ("p2", f"cos{pi}")):
        ulp = REALS[name].single if single else REALS[name].double
        absolute = INTRINSICS[f"__{name}f"][2] if intrinsic else 0.0
        near[array] = Near(exact(name, columns, n)[:, None], 0 if intrinsic else ulp, absolute)
    return Expected({}, "long double", near)
