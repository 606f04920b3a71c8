"""Compiles the sources of an extension into a library, once for each content.

Device code becomes PTX for the program's own architecture, with line information; ptxas runs as
well, since it refuses what a B200's assembler refuses and knows the registers. Host
code is linked with the stand-in for the CUDA runtime and driver (shim/). Libraries are kept in the
user's cache directory under the hash of everything that went into them.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sysconfig
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from b200.host.cuda import headers, sources, stand_in
from b200.host.cuda.architecture import SEPARATE, split_flags
from b200.host.cuda.cache import cache_folder, digest_of, locked
from b200.host.cuda.diagnostics import PTXAS_LINE, explain, source_lines
from b200.host.cuda.errors import BuildError
from b200.host.cuda.sources import Origin, on_cpu, origin
from b200.host.cuda.toolkit import Toolkit, check_run, find_toolkit, ran

HERE = Path(__file__).parent
_STAND_INS = ("-lcuda", "-lcudart", "-lcudart_static", "-lcudadevrt", "-lc10_cuda", "-ltorch_cuda")
_COPIES = "headers"  # of a program's own headers
_DECIDE = ("build", "sources", "stand_in", "architecture")  # modules here, on what is compiled
_ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH")  # what compilers look at
_BINDINGS = re.compile(r"\b(?:PYBIND11_\w+|pybind11|py|wrap_pybind_function)\b")
# An error that torch's own headers may cure where the light ones (light/) were read.
_LIGHT_ERROR = re.compile(
    r"error.*\b(?:torch|at|c10|pybind11|py|Tensor|TensorOptions|TORCH_\w+|AT_\w+|ATen/\S+"
    r"|torch/\S+|redefinition|already)\b"
    r"|(?:operand|argument|object) types? (?:is|are): .*\b(?:torch|at|c10)::"
)
# a variable or function on the device that another file has
_OF_ANOTHER_FILE = re.compile(r"\bextern\s+__(?:device|constant|managed)__")
_UNRESOLVED = re.compile(r"Unresolved extern (?:function|variable)")
_OF_TORCH_CUDA = re.compile(r"\b(?:at|c10|torch)::(?:\w+::)*cuda::[\w:]+")
_TO_LINK = re.compile(r"\b__cudaRegisterLinkedBinary\w+")  # in an object of -rdc=true


@dataclass(frozen=True)
class Source:
    """One file to compile. name: "main.cpp", "cuda.cu"; folder: where its includes are looked up
    first; origin: where its lines come from.
    """

    name: str
    text: str
    folder: str | None = None
    origin: Origin | None = None


@dataclass(frozen=True)
class Request:
    """What is compiled, with the flags of `load` and `load_inline`. program: one with a `main`, for
    which torch has no flags.
    """

    name: str
    sources: tuple[Source, ...]
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    verbose: bool = False
    program: bool = False


def build(request: Request) -> Path:
    """The library of a request, compiled now or found in the cache; BuildError in one line."""
    if importlib.util.find_spec("torch") is None:
        raise BuildError(
            "CUDA sources are linked with torch, which is not installed: install it, or compile"
            " them with nvcc under `b200 exec`, and run the program there"
        )
    toolkit = find_toolkit()
    cache, key = cache_folder(), _key(request, toolkit)
    with locked(cache / f"{key}.lock"):
        folder = next((kept for kept in cache.glob(f"{key}-*") if _fresh(kept)), None)
        if folder is None:
            work = Path(tempfile.mkdtemp(dir=cache))
            try:
                included = _compile(request, toolkit, work)
                folder = cache / f"{key}-{digest_of(*included.values())}"  # one path a content
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder / f"{request.name}.so"


def _key(request: Request, toolkit: Toolkit) -> str:
    import torch

    shim = [path.read_text() for path in sorted(HERE.rglob("*")) if path.suffix in (".h", ".cpp")]
    parts = [
        request.name,
        *(f"{s.name}\0{s.text}\0{s.folder}" for s in request.sources),
        repr((request.cflags, request.cuda_cflags, request.ldflags, request.includes)),
        repr([(name, _given(name)) for name in _ENVIRONMENT]),
        repr(headers.folders()),
        toolkit.build,
        toolkit.cxx_version,
        torch.__version__,
        sysconfig.get_config_var("EXT_SUFFIX") or "",
        *((HERE / f"{name}.py").read_text() for name in _DECIDE),
        *shim,
    ]
    return digest_of(*parts)


def _given(name: str) -> str | None:
    """A variable of the environment, less the folder of the cache that `b200 exec` has put there:
    what is compiled without it is the same.
    """
    places = os.environ.get(name, "").split(os.pathsep)
    ours = f"{cache_folder()}{os.sep}"
    return os.pathsep.join(place for place in places if not place.startswith(ours)) or None


def _fresh(folder: Path) -> bool:
    """Whether a kept library is whole and the files it included are as they were."""
    try:
        facts = json.loads((folder / "facts.json").read_text())
        return all(_digest(Path(p)) == known for p, known in facts["included"].items())
    except (OSError, ValueError, KeyError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile(request: Request, toolkit: Toolkit, work: Path) -> dict[str, str]:
    """Put the library into a folder; returns the user's headers it included, with their digests."""
    for source in request.sources:
        (work / source.name).write_text(source.text)
        sources.copy_headers(work / _COPIES, source.text, source.folder, request.includes)
    device = [source for source in request.sources if source.name.endswith(".cu")]
    together = len(device) > 1 and any(_OF_ANOTHER_FILE.search(s.text) for s in device)
    try:
        return _compile_as(request, toolkit, work, together)
    except BuildError as error:
        if together or len(device) < 2 or not _UNRESOLVED.search(error.log):
            raise
        return _compile_as(request, toolkit, work, separate=True)


def _compile_as(request: Request, toolkit: Toolkit, work: Path, separate: bool) -> dict[str, str]:
    """As `_compile`. separate: the device code of the files is linked, whatever the flags say."""
    if separate:
        request = replace(request, cuda_cflags=(*request.cuda_cflags, SEPARATE))
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = [*stand_in.ALWAYS, *(["entry.cpp"] if request.program else [])]
        shim = [pool.submit(stand_in.compiled, part, toolkit) for part in parts]
        logs = list(pool.map(lambda s: _run(s, request, toolkit, work), request.sources))
        objects = [part.result() for part in shim]
    compiled = [str(work / f"{source.name}.o") for source in request.sources]
    objects += [*compiled, *_device_link(request, compiled, toolkit, work)]
    _link(request, toolkit, objects, work)
    included = {str(p): _digest(p) for p in _included(request, toolkit, work)}
    (work / "log.txt").write_text("\n".join(logs))
    (work / "facts.json").write_text(json.dumps({"included": included}))
    for object_file in work.glob("*.o"):
        object_file.unlink()
    return included


def _include_flags(source: Source, request: Request, toolkit: Toolkit, light: bool) -> list[str]:
    from torch.utils.cpp_extension import include_paths

    own = [*([source.folder] if source.folder else []), *request.includes]
    copies = [f"{_COPIES}{os.path.realpath(path)}" for path in own]
    stand_ins = [HERE / name for name in (("light", "include") if light else ("include",))]
    system = [*include_paths("cpu"), sysconfig.get_path("include"), *toolkit.includes]
    flags = [f"-I{path}" for path in (*stand_ins, *copies, *own)]
    return flags + [x for path in (*system, *headers.folders()) for x in ("-isystem", str(path))]


def _command(source: Source, request: Request, toolkit: Toolkit, light: bool) -> list[str]:
    """The compiler's command line for one source. Host code runs once a launch: -O1 is enough."""
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    flags = [f"-DTORCH_EXTENSION_NAME={request.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags += ["-DB200_BINDINGS"] if _BINDINGS.search(source.text) else []
    flags += _include_flags(source, request, toolkit, light)
    flags += ["-include", "b200/device.h"]
    out = ["-c", source.name, "-o", f"{source.name}.o", "-MD", "-MF", f"{source.name}.d"]
    if not source.name.endswith(".cu"):
        user = [flag for flag in request.cflags if not flag.startswith(("-O", "-std="))]
        return [toolkit.cxx, *flags, *user, "-fPIC", "-std=c++20", "-O1", *out]
    gencode, user = _architecture(request)
    user = [flag for flag in user if not flag.startswith("-std=")]
    device = [gencode, "-lineinfo"]
    # -g: lines of the host code (host_lines.py)
    device += ["-g", "-std=c++17"] if request.program else ["-std=c++20", *COMMON_NVCC_FLAGS]
    host = ["-Xcompiler", "-fPIC,-O1", "-ccbin", toolkit.cxx]
    # the program's own flags behind torch's, as torch has them: -U takes one of these back
    return [str(toolkit.nvcc), *flags, *device, *user, *host, *out]


def _architecture(request: Request) -> tuple[str, list[str]]:
    """nvcc's flag for PTX and machine code, and the request's other flags."""
    wanted, others = split_flags(request.cuda_cflags)
    code = f"{wanted},{wanted.replace('compute', 'sm')}"
    return f"-gencode=arch={wanted},code=[{code}]", others


def _run(source: Source, request: Request, toolkit: Toolkit, work: Path) -> str:
    """Compile one source; what the compiler said. With light headers first, which take a fraction
    of the time, then with torch's own where an error may come from that.
    """
    for light in (True, False):
        command = _command(source, request, toolkit, light)
        if request.verbose:
            print(shlex.join(command))
        done = ran(command, work)
        if done.returncode == 0:
            return done.stdout
        if not _LIGHT_ERROR.search(done.stdout):
            break
    said = done.stdout
    if PTXAS_LINE.search(said):
        ptx = work / f"{source.name}.ptx"
        again = [word.replace(",sm_", ",compute_") for word in command[: command.index("-c")]]
        ran([*again, "-ptx", source.name, "-o", str(ptx)], work)
        said = source_lines(said, ptx, source.name)
    raise BuildError(*explain(said, source, request.name, work))


def _link(request: Request, toolkit: Toolkit, objects: list[str], work: Path) -> None:
    """The library. -Bsymbolic: its CUDA calls are ours, whatever else the process has loaded."""
    import torch

    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    libraries += ["-ltorch_python", "-ldl"]
    command = [toolkit.cxx, "-shared", "-Wl,-Bsymbolic", *objects, *libraries]
    optional = ("-lcu", "-lnv")
    user = [flag for flag in request.ldflags if flag not in _STAND_INS]
    kept = [flag for flag in user if not flag.startswith(optional)]
    out = work / f"{request.name}.so"

    def linked(*parts: str) -> list[str]:
        """CUDA functions that are missing in the library with these parts, too."""
        check_run([*command, *parts, *kept, "-o", str(out)], work)
        return stand_in.missing(check_run(["nm", "-u", "--dynamic", str(out)], work))

    missing = linked()
    _refuse_torch_cuda(request, check_run(["nm", "-u", "--dynamic", "-C", str(out)], work))
    for parts, asked in stand_in.ON_DEMAND.items():
        if any(map(asked.search, missing)):
            command += [stand_in.compiled(part, toolkit) for part in parts]
            missing = linked()
    if missing:
        (work / "missing.cpp").write_text(stand_in.stubs(missing))
        compiler = [toolkit.cxx, "-fPIC", "-O1", f"-I{stand_in.FOLDER}", "-c"]
        check_run([*compiler, "missing.cpp", "-o", "missing.o"], work)
        linked("missing.o")


def _refuse_torch_cuda(request: Request, symbols: str) -> None:
    """BuildError for a function of torch's that is in its library for CUDA."""
    if found := _OF_TORCH_CUDA.search(symbols):
        raise BuildError(
            f"extension {request.name!r} does not link: {found[0]} is in torch's library for CUDA,"
            " whose functions are not in the software B200"
        )


def _device_link(request: Request, objects: list[str], toolkit: Toolkit, work: Path) -> list[str]:
    """The object that registers device code of several files as one module, whose PTX fatbin.py
    finds in it; none where each has its own.
    """
    if not _TO_LINK.search(check_run(["nm", "-u", *objects], work)):
        return []
    host = ["-ccbin", toolkit.cxx, "-Xcompiler", "-fPIC"]
    command = [str(toolkit.nvcc), _architecture(request)[0], *host]
    check_run([*command, "-dlink", *objects, "-o", "device_link.o"], work)
    return [str(work / "device_link.o")]


def file_source(index: int, path: Path) -> Source:
    """A file of the user's, compiled from a copy that says the CPU where it says CUDA."""
    if not path.is_file():
        raise BuildError(f"source file {str(path)!r} does not exist")
    text = path.read_text()
    suffix = ".cu" if path.suffix in (".cu", ".cuh") else ".cpp"
    return Source(
        f"source{index}_{path.stem}{suffix}",
        on_cpu(text),
        str(path.resolve().parent),
        origin(text, [str(path.resolve())]),
    )


def _included(request: Request, toolkit: Toolkit, work: Path) -> list[Path]:
    """The user's own headers, which decide whether a kept library is still good."""
    import torch

    system = [Path(torch.__file__).parent, HERE, work, *toolkit.includes, Path("/usr")]
    system += headers.folders()
    system.append(Path(sysconfig.get_path("include")))
    found = []
    for source in request.sources:
        text = (work / f"{source.name}.d").read_text()
        for word in text.replace("\\\n", " ").split(":", 1)[-1].split():
            path = Path(os.path.join(work, word)).resolve()
            path = sources.header_of_copy(work.resolve() / _COPIES, path)
            if not any(path.is_relative_to(root.resolve()) for root in system) and path.is_file():
                found.append(path)
    return sorted(set(found))
