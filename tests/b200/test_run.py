"""python -m b200 run: statuses, what it prints, CUDA programs, what it leaves after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc, one_folder
from tests.b200.ptx_support import kernel

# With arrays of numpy: a second run, and what test_corpus.py starts, is a Python of its own, to which
# torch would be two CPU seconds.
LAUNCH = """
import sys, numpy, b200
x, out = numpy.arange(64, dtype=numpy.int32), numpy.zeros(1, dtype=numpy.int32)
def launch(text):
    b200._runtime.gpu.launch(text, None, (1, 1, 1), (32, 1, 1), args=[x, out])
"""
READ = "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; "
CLEAN = kernel(
    READ + "ld.global.u32 %r1, [%rd1+4]; st.global.u32 [%rd2], %r1;", [".u64 a", ".u64 b"]
)
REMARKED = CLEAN.replace(  # portability: lane 0 is not in its own membermask
    "st.global", "mov.u32 %r2, -2; shfl.sync.idx.b32 %r1, %r1, 0, 31, %r2; st.global"
)
SLOT = ".shared .align 128 .b8 slot[128];\n.shared .align 8 .b8 bar[8];"
# The slot is written while its load is under way, and read when that has landed. The load is 128
# bytes of numbers; what is stored survives where the load lands first, as in the usual order.
RACE = kernel(
    READ
    + """mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
    mov.u32 %r2, slot; mov.u32 %r3, bar; mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 128, [%r3];
    mov.u32 %r4, 77; st.shared.u32 [%r2+4], %r4;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra WAIT;
    ld.shared.u32 %r5, [%r2+4]; st.global.u32 [%rd2], %r5;
    END:""",
    [".u64 a", ".u64 b"],
    smem=SLOT,
)


@pytest.fixture
def run(tmp_path, fork_server):
    def call(script: str, *arguments: str, name: str = "script.py", **files: str):
        if name.endswith(".cu"):
            folder = one_folder({name: script, **files})
        else:
            folder = tmp_path
            (folder / name).write_text(script)
        command = ["-m", "b200", "run", *arguments]
        where = command.index("SCRIPT") if "SCRIPT" in command else len(command)
        command[where : where + 1] = [str(folder / name)]
        return fork_server.run(*command)

    return call


def launching(text: str, after: str = "") -> str:
    return f"{LAUNCH}\nlaunch({text!r})\n{after}\n"


STATUSES = {
    "clean": (launching(CLEAN), 0, "grid (1, 1, 1)"),
    "a remark": (launching(REMARKED), 0, "protocol (portability): lanes 0x00000001 execute it"),
    "an error": (launching(RACE), 1, "race: "),
    "the script's own": (launching(CLEAN, "sys.exit(3)"), 3, "grid (1, 1, 1)"),
    "a text": (launching(CLEAN, "sys.exit('no')"), 1, "no\n"),
}


@pytest.mark.parametrize("script, status, said", STATUSES.values(), ids=STATUSES)
def test_exit_status(run, script, status, said):
    done = run(script, "--no-again")
    assert done.returncode == status, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("looks", (True, False))
def test_a_refused_launch(run, looks):
    pytest.importorskip("cuda.bindings.driver")
    done = run(f"""
from cuda.bindings import driver as d
_, module = d.cuModuleLoadData({CLEAN.encode()!r})
_, kernel = d.cuModuleGetFunction(module, b"k")
answer = d.cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, 0, 0, 0)
if {looks}: status, = answer
""")
    assert done.returncode == int(not looks), done.stderr
    line = (
        "b200 run: cuLaunchKernel returned CUDA_ERROR_INVALID_VALUE, at which nobody has looked: "
    )
    assert (line + "launch of k refused" in done.stderr) == (not looks), done.stderr


def test_a_module(tmp_path, fork_server):
    """As `python -m`: from the current directory, with its arguments, -m among them."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "race.py").write_text("import sys\n" + launching(RACE) + "\nprint(sys.argv[1:])\n")

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return fork_server.run("-m", "b200", "run", "--no-again", *arguments, cwd=tmp_path)

    done = call("-m", "kernels.race", "-k", "name", "-m", "slow")
    assert done.returncode == 1 and ": race: " in done.stderr
    assert done.stdout == "['-k', 'name', '-m', 'slow']\n"
    for name in ("kernels.absent", "absent.kernel"):
        done = call("-m", name)
        assert done.returncode == 2
        assert done.stderr.startswith(f"b200 run: -m {name}: ") and done.stderr.count("\n") == 1
    script = tmp_path / "own.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    assert call(str(script), "-m", "128").stdout == "['-m', '128']\n"


def test_equal_launches_are_printed_once(run):
    done = run(launching(CLEAN, f"launch({CLEAN!r}); launch({REMARKED!r})"))
    assert done.stderr.count("grid (1, 1, 1)") == 2 and "2 times: b200: k, grid" in done.stderr


def test_a_traceback_begins_in_the_script(run):
    script = "import torch\ndef inner():\n    torch.zeros(2, device='cuda').view(3)\ninner()\n"
    done = run(script, "--no-again")
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File")]
    assert done.returncode == 1 and "RuntimeError: shape '[3]' is invalid" in done.stderr
    assert files and all(file.endswith("script.py") for file in files), done.stderr


def test_decided_by_timing(run):
    """The other run ends with status 0, and has the race: it is not called right."""
    script = launching(RACE, "assert out.item() == 1, out")
    done = run(script)
    assert done.returncode == 1 and "right by timing" not in done.stderr
    told = done.stderr.partition("b200: decided by timing: ")[2]
    assert "AssertionError" in told and "--schedule late" in told
    assert "hazard: " in told and "race: " in told, done.stderr
    assert "by timing" not in run(script, "--no-again").stderr


def test_sigterm_leaves_nothing(tmp_path):
    """Of a Python of its own: a fork ends in another way."""
    (tmp_path / "script.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(100)\n")
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "b200", "run", str(tmp_path / "script.py")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not list(folder.glob("b200-*"))


@pytest.mark.parametrize("end", ("finally: print('out', flush=True)", "except BaseException: pass"))
def test_sigterm_of_a_program_with_many_objects(tmp_path, fork_server, end):
    """At once, however much there is to look through; after a moment where it is caught."""
    script = f"""
import gc, time
def wait():
    try:
        print('up', flush=True); time.sleep(100)
    {end}
    time.sleep(100)
looked = []
gc.callbacks.append(lambda phase, info: looked and print("look", info, flush=True))
objects = [[] for _ in range(100000)]
looked.append(1)
wait()
"""
    (tmp_path / "script.py").write_text(script)
    command = ("-m", "b200", "run", str(tmp_path / "script.py"))
    done = fork_server.run(*command, signal_at=(signal.SIGTERM, "up\n"), limit=60)
    assert done.returncode == 143
    out = done.stdout
    assert ("out" in out) == end.startswith("finally") and "'generation': 2" not in out


# --- CUDA programs
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

__global__ void count(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = i + int(__half(1.f) + __half(1.f));  // operators that torch's flags take away
}
int main(int argc, char** argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 40, threads = argc > 2 ? atoi(argv[2]) : 32;
  int *device, *host = new int[n];
  if (cudaMalloc(&device, 4 * n) != cudaSuccess) return 9;
  count<<<(n + 31) / 32, threads>>>(device, n);
  if (const auto error = cudaGetLastError()) {
    fprintf(stderr, "told: %s\n", cudaGetErrorString(error));
    exit(5);
  }
  cudaMemcpy(host, device, 4 * n, cudaMemcpyDeviceToHost);
  printf("%s %d %d\n", argv[1], host[0], host[n - 1]);
  return host[n - 1] == n + 1 ? 0 : 1;
}
"""


@needs_nvcc
def test_a_cuda_program(run):
    done = run(PROGRAM, "SCRIPT", "--", "100", name="count.cu")
    assert (done.returncode, done.stdout) == (0, "100 2 101\n"), done.stderr
    assert "count" in done.stderr and "grid (4, 1, 1)" in done.stderr
    done = run(PROGRAM, "--no-again", "SCRIPT", "8", "4096", name="count.cu")
    assert done.returncode == 5 and not done.stdout
    assert "told: invalid configuration argument (launch of" in done.stderr


@needs_nvcc
def test_a_cuda_program_that_faults(run):
    text = PROGRAM.replace("if (i < n) x[i]", "x[i * 1000000]")
    line = 1 + text[: text.index("x[i * 1000000]")].count("\n")
    done = run(text, "--no-again", "SCRIPT", "100", name="count.cu")
    assert done.returncode == 1 and f"count.cu:{line}" in done.stderr, done.stderr


@needs_nvcc
@pytest.mark.parametrize(
    "source, said",
    [
        ("#include <cutlass/no_such.h>\nint main() {}", "the pip package nvidia-cutlass has it"),
        ("void k() {}", "a program needs a function main"),
    ],
)
def test_programs_that_are_refused(run, source, said):
    done = run(source, name="program.cu")
    assert done.returncode == 1 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1


ATTRIBUTES = r"""
#include <cstdio>
int main() {
  int mode = -1, refused = 0, reserved = (int)cudaDevAttrReserved145;
  for (int i = 1; i <= reserved; ++i) {
    int value;
    refused += cudaDeviceGetAttribute(&value, (cudaDeviceAttr)i, 0) != cudaSuccess;
  }
  cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, 0);
  cudaDeviceProp facts;
  cudaGetDeviceProperties(&facts, 0);
  printf("%d %d %d %d %d\n", refused, mode, facts.clusterLaunch, facts.cooperativeLaunch, facts.major);
}
"""


@needs_nvcc
def test_a_main_that_is_included(run):
    """It asks for every attribute of a device that CUDA has, and for its properties."""
    done = run('#include "main.cuh"\n', name="attributes.cu", **{"main.cuh": ATTRIBUTES})
    assert (done.returncode, done.stdout) == (0, "0 0 1 1 10\n"), done.stderr


def test_headers_of_the_package_nvidia_cutlass(tmp_path, monkeypatch):
    from b200.host.cuda import headers

    for part in ("source/include/cutlass", "source/tools/util/include"):
        (tmp_path / "cutlass_library" / part).mkdir(parents=True)
    (tmp_path / "cutlass_library" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [str(path.relative_to(tmp_path / "cutlass_library")) for path in headers.folders()[:2]]
    assert found == ["source/include", "source/tools/util/include"]


ENDLESS = """
import torch
import b200
from b200.script import telling_where

TEXT = '''.version 8.8
.target sm_100a
.address_size 64
.visible .entry forever(.param .u64 out) {
.reg .b32 %r<3>;
.reg .b64 %rd<3>;
.loc 1 7 0
ld.param.u64 %rd0, [out];
AGAIN: add.u32 %r0, %r0, 1;
st.global.u32 [%rd0], %r0;
bra AGAIN;
}
.file 1 "forever.cu"
'''
gpu = b200.install()
with telling_where(gpu, 1.0):
    gpu.launch(TEXT, None, (1, 1, 1), (32, 1, 1), args=[torch.zeros(1, dtype=torch.int32)])
"""


def test_a_loop_without_end_says_where_it_is(fork_server):
    done = fork_server.run("-c", ENDLESS, signal_at=(signal.SIGKILL, "warp 0"), limit=60)
    first, second = done.stderr.splitlines()[:2]
    assert "s in one launch, at" in first
    assert "forever.cu:7" in second and "CTA (0, 0, 0), warp 0" in second
