// A template for a gemm in raw CUDA: d = a b^T of 128 x 64, fp16 in, fp32 out, k a multiple of 64.
//
// Warp 0 loads k-tiles into four stages, warp 1 multiplies, all four warps store a row of d a thread.
// Run it without a B200: python -m b200 run --time docs/examples/gemm_fast.cu
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int M = 128, N = 64, K_TILE = 64, STAGES = 4;
constexpr int A_BYTES = M * K_TILE * 2, B_BYTES = N * K_TILE * 2;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;

__device__ uint32_t shared_address(const void *p) { return __cvta_generic_to_shared(p); }

__device__ void wait(uint64_t *barrier, int parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ void load(void *to, const void *from, int bytes, uint64_t *barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ void commit(uint64_t *barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
      shared_address(barrier)) : "memory");
}

// Core matrices of 8 rows x 16 bytes: those of one k-chunk follow each other, then the next chunk's.
__device__ uint64_t descriptor(const void *p, int rows) {
  uint64_t leading = rows / 8 * 128, stride = 128;
  return (shared_address(p) & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1ull << 46;
}

__global__ __launch_bounds__(128) void gemm(const unsigned char *a, const unsigned char *b, float *d,
                                            int k_tiles) {
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ uint64_t full[STAGES], empty[STAGES], done;
  __shared__ uint32_t tensor_memory;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    auto init = [](uint64_t *barrier) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
    };
    for (int s = 0; s < STAGES; s++) init(&full[s]), init(&empty[s]);
    init(&done);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == 0) {
    __syncwarp();
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(
        shared_address(&tensor_memory)) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;");

  if (threadIdx.x == 0) {
    for (int k = 0; k < k_tiles; k++) {
      const int s = k % STAGES, phase = k / STAGES % 2;
      unsigned char *stage = stages + s * STAGE_BYTES;
      wait(&empty[s], phase ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
          shared_address(&full[s])), "r"(STAGE_BYTES) : "memory");
      load(stage, a + k * A_BYTES, A_BYTES, &full[s]);
      load(stage + A_BYTES, b + k * B_BYTES, B_BYTES, &full[s]);
    }
  }
  if (threadIdx.x == 32) {
    const uint32_t instruction = 1 << 4 | N / 8 << 17 | M / 16 << 24;  // fp32 = fp16 x fp16
    for (int k = 0; k < k_tiles; k++) {
      const int s = k % STAGES, phase = k / STAGES % 2;
      unsigned char *stage = stages + s * STAGE_BYTES;
      wait(&full[s], phase);
      asm volatile("tcgen05.fence::after_thread_sync;");
      for (int step = 0; step < K_TILE / 16; step++) {
        uint64_t of_a = descriptor(stage + step * 2 * (M / 8) * 128, M);
        uint64_t of_b = descriptor(stage + A_BYTES + step * 2 * (N / 8) * 128, N);
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %4, 0;"
            " tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(tensor_memory),
            "l"(of_a), "l"(of_b), "r"(instruction), "r"(k + step));
      }
      commit(&empty[s]);
    }
    commit(&done);
  }
  __syncwarp();
  wait(&done, 0);
  asm volatile("tcgen05.fence::after_thread_sync;");
  for (int column = 0; column < N; column += 8) {
    float v[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),
                   "=f"(v[7]) : "r"(tensor_memory + (warp << 21) + column));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    float4 *row = reinterpret_cast<float4 *>(d + threadIdx.x * N + column);
    row[0] = make_float4(v[0], v[1], v[2], v[3]);
    row[1] = make_float4(v[4], v[5], v[6], v[7]);
  }
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  if (warp == 0)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(tensor_memory));
}

// A matrix of `rows` x k as its tiles lie in shared memory.
std::vector<half> tiled(const std::vector<float> &matrix, int rows, int k) {
  std::vector<half> out(matrix.size());
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < k; c++) {
      int chunk = c % K_TILE / 8, core = chunk * (rows / 8) + r / 8;
      out[c / K_TILE * rows * K_TILE + core * 64 + r % 8 * 8 + c % 8] = matrix[r * k + c];
    }
  return out;
}

int main() {
  const int k = 256;
  std::vector<float> a(M * k), b(N * k), d(M * N);
  for (size_t i = 0; i < a.size(); i++) a[i] = float(i * 7 % 13) - 6;
  for (size_t i = 0; i < b.size(); i++) b[i] = float(i * 5 % 11) - 5;
  std::vector<half> tiles_a = tiled(a, M, k), tiles_b = tiled(b, N, k);
  unsigned char *on_a, *on_b;
  float *on_d;
  cudaMalloc(&on_a, tiles_a.size() * 2);
  cudaMalloc(&on_b, tiles_b.size() * 2);
  cudaMalloc(&on_d, d.size() * 4);
  cudaMemcpy(on_a, tiles_a.data(), tiles_a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(on_b, tiles_b.data(), tiles_b.size() * 2, cudaMemcpyHostToDevice);
  cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * STAGE_BYTES);
  gemm<<<1, 128, STAGES * STAGE_BYTES>>>(on_a, on_b, on_d, k / K_TILE);
  cudaMemcpy(d.data(), on_d, d.size() * 4, cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float sum = 0;
      for (int x = 0; x < k; x++) sum += a[i * k + x] * b[j * k + x];
      wrong += d[i * N + j] != sum;
    }
  printf("%d of %d elements are wrong\n", wrong, M * N);
  return wrong != 0;
}
