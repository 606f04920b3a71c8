"""A small attention in raw tcgen05, with the mistakes that cost a public project weeks, one a kernel.

A CTA has a head: O = softmax(Q K^T) V, two tiles of 128 rows of Q, K and V of 64 tokens, 64 wide.
Comments `// NAME` mark the lines that findings name.
"""

from __future__ import annotations

from tests.b200.host.cuda.support import made_by_nvcc

SHARED = 1024 + 16384 + 2 * 8192 + 16384  # bytes: barriers, Q, K, V, P
SOURCE = r"""
#include <cstdint>
#include <cuda_bf16.h>
typedef __nv_bfloat16 bf16;
enum Bug { RIGHT, QUARTER, COLUMNS, GOES_ON, FEW_READ, STRIDE };
const int ROWS = 128, TOKENS = 64, WIDE = 64, TILES = 2;

// Elements (row, k) of an operand without swizzle, K-major: 8 x 16 bytes lie together.
__device__ uint32_t place(int row, int k, int rows) {
  return (k / 8) * (rows * 16) + (row / 8) * 128 + (row % 8) * 16 + (k % 8) * 2;
}
__device__ uint64_t descriptor(uint32_t at, int rows) {
  return uint64_t(at >> 4 & 0x3fff) | uint64_t(rows * 16 >> 4) << 16 | uint64_t(128 >> 4) << 32 | 1ull << 46;
}
// f32 of bf16 x bf16, M = 128.
__device__ uint32_t instruction(int n) { return 1 << 4 | 1 << 7 | 1 << 10 | n / 8 << 17 | 128 / 16 << 24; }

__device__ void mma(uint32_t d, uint32_t a, int a_rows, uint32_t b, int b_rows, int k, bool adds) {
  for (int i = 0; i < k / 16; i++)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
      :: "r"(d), "l"(descriptor(a + i * 2 * a_rows * 16, a_rows)), "l"(descriptor(b + i * 2 * b_rows * 16, b_rows)),
         "r"(instruction(b_rows)), "r"(int(adds || i > 0)) : "memory");  // mma
}
__device__ void commit(uint32_t bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(bar) : "memory");
}
__device__ void wait(uint32_t bar, int parity) {
  asm volatile("{ .reg .pred p; AGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
    "@!p bra AGAIN_%=; }" :: "r"(bar), "r"(parity) : "memory");
}
__device__ void load8(float* v, uint32_t at) {
  uint32_t* u = (uint32_t*)v;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
    : "=r"(u[0]), "=r"(u[1]), "=r"(u[2]), "=r"(u[3]), "=r"(u[4]), "=r"(u[5]), "=r"(u[6]), "=r"(u[7]) : "r"(at));  // load
}

template <int BUG> __device__ void attention(const bf16* q, const bf16* k, const bf16* v, float* out) {
  extern __shared__ __align__(1024) char smem[];
  const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
  const uint32_t Q = 1024, K = Q + 16384, V = K + 8192, P = V + 8192, bar = base + 16;
  const int t = threadIdx.x, w = t / 32, heads = gridDim.x;
  const int mine = BUG == QUARTER ? t ^ 32 : t;  // the row of Q that this thread takes for its own
  const int columns = BUG == COLUMNS ? 64 : 128;
  if (w == 0) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(base), "r"(columns) : "memory");
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const uint32_t tmem = *(volatile uint32_t*)smem, S = tmem, O = tmem + 64;
  const int head = blockIdx.x;
  int phase = 0;
  for (int i = t; i < TOKENS * WIDE; i += 128) {
    int row = i / WIDE, c = i % WIDE;
    *(bf16*)(smem + K + place(row, c, TOKENS)) = k[head * TOKENS * WIDE + i];
    *(bf16*)(smem + V + place(c, row, WIDE)) = v[head * TOKENS * WIDE + i];
  }
  for (int tile = 0; tile < TILES; tile++) {
    for (int i = t; i < ROWS * WIDE; i += 128)
      *(bf16*)(smem + Q + place(i / WIDE, i % WIDE, ROWS)) = q[(tile * ROWS + i / WIDE) * heads * WIDE + head * WIDE + i % WIDE];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      mma(S, base + Q, ROWS, base + K, TOKENS, WIDE, BUG == GOES_ON && tile > 0);
      commit(bar);
    }
    wait(bar, phase); phase ^= 1;
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t lanes = mine / 32 << 21;
    float s[TOKENS], sum = 0, top = -1e30f;
    for (int c = 0; c < TOKENS; c += 8) load8(s + c, S + lanes + c);
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    for (int c = 0; c < TOKENS; c++) top = fmaxf(top, s[c]);
    for (int c = 0; c < TOKENS; c++) {
      s[c] = __expf(s[c] - top); sum += s[c];
      *(bf16*)(smem + P + place(mine, c, ROWS)) = __float2bfloat16(s[c]);
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      mma(O, base + P, ROWS, base + V, WIDE, TOKENS, false);
      commit(bar);
    }
    wait(bar, phase); phase ^= 1;
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const int read = BUG == FEW_READ ? 16 : WIDE;
    float o[WIDE];
    for (int c = 0; c < read; c += 8) load8(o + c, O + lanes + c);
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    const int row = tile * ROWS + mine;
    float* to = out + (BUG == STRIDE ? row + head : row * heads + head) * WIDE;
    for (int c = 0; c < read; c++) to[c] = o[c] / sum;  // store
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
  }
  if (w == 0) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(tmem), "r"(columns));
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
}
#define KERNEL(name, bug) extern "C" __global__ void name(const bf16* q, const bf16* k, const bf16* v, float* out) \
  { attention<bug>(q, k, v, out); }
KERNEL(right, RIGHT)
KERNEL(quarter, QUARTER)
KERNEL(columns, COLUMNS)
KERNEL(goes_on, GOES_ON)
KERNEL(few_read, FEW_READ)
KERNEL(stride, STRIDE)
"""


def line(name: str) -> int:
    """Of the source file, that has the comment `// NAME`."""
    return next(n for n, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"// {name}"))


def compiled() -> str:
    """The PTX of all kernels, with lines of attention.cu."""
    words = ("-ptx", "-lineinfo", "-std=c++17", "-arch=sm_100a", "attention.cu")
    return (made_by_nvcc({"attention.cu": SOURCE}, *words) / "attention.ptx").read_text()
