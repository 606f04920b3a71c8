"""cuda::barrier, cuda::pipeline and cuda::atomic_ref of libcu++, and what else gives no value."""

from __future__ import annotations

import numpy as np

from lab.headers.groups.program import THREADS, Program, T

BLOCK = "cuda::barrier<cuda::thread_scope_block>"
BARRIER = f"#pragma nv_diag_suppress static_var_with_dynamic_init\n  __shared__ {BLOCK} b;"
STATE = "cuda::pipeline_shared_state<cuda::thread_scope_block, 2>"
REF = "cuda::atomic_ref<unsigned, cuda::thread_scope_%s>"


def _totals(x: np.ndarray) -> np.ndarray:
    v = x[:THREADS].astype(np.uint64)
    return np.array(
        [
            v.sum(),
            (1 << 20) - v.sum(),
            np.bitwise_and.reduce(v | 0x80),
            np.bitwise_or.reduce(v),
            np.bitwise_xor.reduce(v),
            v.min(),
            v.max(),
        ],
        np.uint32,
    )


PROGRAMS = (
    Program(
        "cuda::barrier",
        "barrier_block",
        "init arrive wait arrive_and_wait",
        f"""{BARRIER} __shared__ unsigned s[128]; if (t == 0) init(&b, 128); __syncthreads();
  s[t] = in[t]; b.wait(b.arrive()); out[t] = s[127 - t]; b.arrive_and_wait(); s[t] = t;
  b.arrive_and_wait(); out[128 + t] = s[t ^ 64];""",
        lambda x: [x[:THREADS][::-1], T ^ 64],
    ),
    Program(
        "cuda::barrier",
        "barrier_drop",
        "arrive_and_drop wait_parity",
        f"""{BARRIER} __shared__ unsigned s[128]; if (t == 0) init(&b, 128); __syncthreads();
  s[t] = in[t]; if (t >= 64) {{ b.arrive_and_drop(); return; }}
  (void)b.arrive(); b.wait_parity(false); out[t] = s[t + 64]; b.arrive_and_wait(); out[64 + t] = 1;""",
        lambda x: [x[64:128], np.ones(64, np.uint32)],
    ),
    Program(
        "cuda::barrier",
        "barrier_tries",
        "try_wait_for try_wait_parity_for barrier_native_handle max",
        f"""{BARRIER} __shared__ unsigned s[128]; if (t == 0) init(&b, 128); __syncthreads();
  s[t] = in[t]; auto token = b.arrive();
  while (!b.try_wait_for(std::move(token), cuda::std::chrono::microseconds(5))) {{ }}
  out[t] = s[t ^ 1]; (void)b.arrive();
  while (!b.try_wait_parity_for(true, cuda::std::chrono::microseconds(5))) {{ }}
  out[128 + t] = (cuda::device::barrier_native_handle(b) != nullptr) + 2 * (b.max() > 128);""",
        lambda x: [x[T ^ 1], np.full(THREADS, 3, np.uint32)],
    ),
    Program(
        "cuda::barrier",
        "barrier_tx",
        "barrier_arrive_tx barrier_expect_tx memcpy_async_tx",
        f"""{BARRIER} __shared__ alignas(16) unsigned s[128]; if (t == 0) init(&b, 128); __syncthreads();
  {BLOCK}::arrival_token token;
  if (t == 0) {{ cuda::device::memcpy_async_tx(s, in, cuda::aligned_size_t<16>(512), b);
    token = cuda::device::barrier_arrive_tx(b, 1, 512); }} else token = b.arrive();
  b.wait(std::move(token)); out[t] = s[127 - t]; __syncthreads();
  if (t == 0) {{ cuda::device::barrier_expect_tx(b, 512);
    cuda::device::memcpy_async_tx(s, in + 128, cuda::aligned_size_t<16>(512), b); }}
  b.arrive_and_wait(); out[128 + t] = s[t];""",
        lambda x: [x[:THREADS][::-1], x[128:256]],
    ),
    Program(
        "cuda::barrier",
        "barrier_copy",
        "memcpy_async",
        f"""{BARRIER} __shared__ unsigned s[128]; if (t == 0) init(&b, 128); __syncthreads();
  cuda::memcpy_async(cg::this_thread_block(), s, in, sizeof(s), b); b.arrive_and_wait();
  out[t] = s[127 - t];""",
        lambda x: x[:THREADS][::-1],
    ),
    Program(
        "cuda::pipeline",
        "pipeline_own",
        "make_pipeline producer_acquire producer_commit consumer_wait consumer_release",
        """auto p = cuda::make_pipeline(); __shared__ unsigned s[2][128];
  for (int i = 0; i < 3; i++) { p.producer_acquire();
    cuda::memcpy_async(s[i & 1] + t, in + 128 * i + t, sizeof(unsigned), p); p.producer_commit();
    p.consumer_wait(); out[128 * i + t] = s[i & 1][t]; p.consumer_release(); }""",
        lambda x: x[:384],
    ),
    Program(
        "cuda::pipeline",
        "pipeline_prior",
        "pipeline_consumer_wait_prior",
        """auto p = cuda::make_pipeline(); __shared__ unsigned s[2][128];
  for (int i = 0; i < 2; i++) { p.producer_acquire();
    cuda::memcpy_async(s[i] + t, in + 128 * i + t, sizeof(unsigned), p); p.producer_commit(); }
  cuda::pipeline_consumer_wait_prior<1>(p); out[t] = s[0][t]; p.consumer_release();
  cuda::pipeline_consumer_wait_prior<0>(p); out[128 + t] = s[1][t]; p.consumer_release();""",
        lambda x: x[:256],
    ),
    Program(
        "cuda::pipeline",
        "pipeline_block",
        "pipeline_shared_state make_pipeline(group)",
        f"""__shared__ {STATE} state; auto g = cg::this_thread_block(); auto p = cuda::make_pipeline(g, &state);
  __shared__ unsigned s[2][128];
  for (int i = 0; i < 3; i++) {{ p.producer_acquire();
    cuda::memcpy_async(g, s[i & 1], in + 128 * i, 512, p); p.producer_commit();
    p.consumer_wait(); out[128 * i + t] = s[i & 1][127 - t]; p.consumer_release(); }}""",
        lambda x: np.concatenate([x[128 * i : 128 * i + 128][::-1] for i in range(3)]),
    ),
    Program(
        "cuda::pipeline",
        "pipeline_roles",
        "pipeline_role::producer pipeline_role::consumer quit",
        f"""__shared__ {STATE} state; auto g = cg::this_thread_block();
  auto role = t < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
  auto p = cuda::make_pipeline(g, &state, role); __shared__ unsigned s[2][32];
  for (int i = 0; i < 4; i++) if (t < 32) {{ p.producer_acquire();
      cuda::memcpy_async(s[i & 1] + t, in + 32 * i + t, sizeof(unsigned), p); p.producer_commit();
    }} else {{ p.consumer_wait(); if (t < 64) out[32 * i + t - 32] = s[i & 1][63 - t]; p.consumer_release(); }}
  p.quit();""",
        lambda x: np.concatenate([x[32 * i : 32 * i + 32][::-1] for i in range(4)]),
    ),
    *(
        Program(
            "cuda::atomic_ref",
            f"atomic_{scope}",
            f"thread_scope_{scope}: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_min fetch_max",
            f"""{"__shared__" if scope == "block" else "__device__ static"} unsigned s[7];
  if (t == 0) {{ s[0] = 0; s[1] = 1 << 20; s[2] = ~0u; s[3] = s[4] = s[6] = 0; s[5] = ~0u; }} __syncthreads();
  {REF % scope} a0(s[0]), a1(s[1]), a2(s[2]), a3(s[3]), a4(s[4]), a5(s[5]), a6(s[6]); unsigned v = in[t];
  a0.fetch_add(v, cuda::memory_order_relaxed); a1.fetch_sub(v, cuda::std::memory_order_acq_rel);
  a2.fetch_and(v | 0x80); a3.fetch_or(v); a4.fetch_xor(v); a5.fetch_min(v); a6.fetch_max(v); __syncthreads();
  if (t < 7) out[t] = s[t];""",
            _totals,
        )
        for scope in ("block", "device", "system")
    ),
    Program(
        "cuda::atomic_ref",
        "atomic_each",
        "load store exchange compare_exchange_strong compare_exchange_weak operator++ operator--"
        " operator+= operator-= operator&= operator|= operator^= is_lock_free",
        f"""__shared__ unsigned s[128]; {REF % "block"} a(s[t]); a.store(in[t]);
  out[t] = a.exchange(5u) + a.load(cuda::memory_order_acquire); unsigned was = 5;
  bool one = a.compare_exchange_strong(was, 9u), two = a.compare_exchange_strong(was, 1u);
  out[128 + t] = one + 2 * two + 4 * was; while (!a.compare_exchange_weak(was, 20u)) {{ }}
  unsigned r = a++; r += ++a; r += a--; r += --a; r += a += 4; r += a -= 2; r += a &= 0x16; r += a |= 1; r += a ^= 3;
  out[256 + t] = r + 1000 * a.is_lock_free();""",
        # 20: a++ 20, ++a 22, a-- 22, --a 20, += 24, -= 22, &= 0x16 22, |= 1 23, ^= 3 20; lock-free
        lambda x: [x[:THREADS] + 5, np.full(THREADS, 37), np.full(THREADS, 195 + 1000)],
    ),
    Program(
        "cuda::atomic_ref",
        "atomic_kinds",
        "of_long_long of_float of_double of_int",
        """__shared__ unsigned long long l; __shared__ float f; __shared__ double d; __shared__ int i;
  if (t == 0) { l = 0; f = 0; d = 0; i = 0; } __syncthreads(); unsigned v = in[t];
  cuda::atomic_ref<unsigned long long, cuda::thread_scope_block>(l).fetch_add(v * 0x100000001ull);
  cuda::atomic_ref<float, cuda::thread_scope_block>(f).fetch_add((float)v);
  cuda::atomic_ref<double, cuda::thread_scope_block>(d).fetch_add((double)v);
  cuda::atomic_ref<int, cuda::thread_scope_block>(i).fetch_min(-(int)v); __syncthreads();
  if (t == 0) { out[0] = l; out[1] = l >> 32; out[2] = f; out[3] = d; out[4] = i; }""",
        lambda x: np.array(
            [*[x[:THREADS].sum()] * 4, (1 << 32) - int(x[:THREADS].max())], np.uint64
        ),
    ),
    Program(
        "cuda::atomic_ref",
        "atomic_wait",
        "wait notify_one notify_all",
        f"""__shared__ unsigned flag, value; if (t == 0) flag = 0; __syncthreads(); {REF % "block"} a(flag);
  if (t == 64) {{ value = in[3]; a.store(1u, cuda::memory_order_release); a.notify_all(); }}
  if (t < 32) {{ a.wait(0u, cuda::memory_order_acquire); out[t] = value; }}""",
        lambda x: np.full(32, x[3]),
    ),
    Program(
        "intrinsics",
        "spaces",
        "__isGlobal __isShared __isConstant __isLocal __isGridConstant __cvta_generic_to_global"
        " __cvta_generic_to_shared __cvta_generic_to_local __cvta_generic_to_constant"
        " __cvta_global_to_generic __cvta_shared_to_generic __cvta_local_to_generic"
        " __cvta_constant_to_generic",
        """__shared__ unsigned s[128]; __constant__ static unsigned c[2] = {7, 8}; unsigned l[2] = {in[t], t};
  s[t] = in[t]; volatile int one = t & 1; const unsigned* p = l + one;
  out[t] = __isGlobal(in) + 2 * __isShared(s) + 4 * __isConstant(c) + 8 * __isLocal(p)
    + 16 * __isGlobal(s) + 32 * __isShared(in) + 64 * __isLocal(c) + 128 * __isConstant(p);
  out[128 + t] = *(unsigned*)__cvta_global_to_generic(__cvta_generic_to_global(in + t))
    + 100 * (*(unsigned*)__cvta_shared_to_generic(__cvta_generic_to_shared(s + t)) == in[t])
    + 200 * (*(unsigned*)__cvta_local_to_generic(__cvta_generic_to_local(p)) == *p)
    + 400 * (*(const unsigned*)__cvta_constant_to_generic(__cvta_generic_to_constant(c + 1)) == 8);""",
        lambda x: [np.full(THREADS, 15, np.uint32), x[:THREADS] + 700],
    ),
    Program(
        "intrinsics",
        "barriers",
        "__syncthreads __syncwarp __barrier_sync __barrier_sync_count __threadfence"
        " __threadfence_block __threadfence_system __nanosleep",
        """__shared__ unsigned s[128]; s[t] = in[t]; __syncthreads(); unsigned v = s[127 - t];
  __barrier_sync(1); s[t] = v; __syncwarp(); v += s[t ^ 1]; if (t < 64) __barrier_sync_count(2, 64);
  __threadfence_block(); __threadfence(); __threadfence_system(); __nanosleep(20); out[t] = v;""",
        lambda x: x[:THREADS][::-1] + x[:THREADS][::-1][T ^ 1],
    ),
    Program(
        "intrinsics",
        "cluster_words",
        "__clusterDimIsSpecified __clusterDim __clusterRelativeBlockIdx __clusterGridDimInClusters"
        " __clusterIdx __clusterRelativeBlockRank __clusterSizeInBlocks __cluster_barrier_arrive"
        " __cluster_barrier_arrive_relaxed __cluster_barrier_wait __threadfence_cluster"
        " __cluster_map_shared_rank __cluster_query_shared_rank __isCtaShared __isClusterShared",
        """__shared__ unsigned s[128]; unsigned rank = __clusterRelativeBlockRank(); s[t] = in[t] + rank;
  __threadfence_cluster(); __cluster_barrier_arrive(); __cluster_barrier_wait();
  unsigned* p = (unsigned*)__cluster_map_shared_rank(s + t, rank ^ 1); unsigned v = *p;
  out[128 * blockIdx.x + t] = v + 100 * __cluster_query_shared_rank(p) + 1000 * __clusterSizeInBlocks()
    + 10000 * (__clusterDim().x + __clusterRelativeBlockIdx().x + __clusterIdx().x + __clusterGridDimInClusters().x)
    + 100000 * __clusterDimIsSpecified() + 200000 * __isCtaShared(s) + 400000 * __isCtaShared(p)
    + 800000 * __isClusterShared(p);
  __cluster_barrier_arrive_relaxed(); __cluster_barrier_wait();""",
        lambda x: [x[:128] + 1 + 1132100, x[:128] + 1142000],
        grid=2,
        cluster=2,
    ),
    Program(
        "intrinsics",
        "wide_atomics",
        "__u128AtomicCAS __u128AtomicCAS_block __u128AtomicCAS_system __u128AtomicExch"
        " __u128AtomicExch_block __u128AtomicExch_system",
        """__shared__ alignas(16) unsigned s[512]; unsigned* p = s + 4 * t; alignas(16) unsigned was[4] = {1, 2, 3, 4};
  alignas(16) unsigned next[4] = {in[t], t, 5, 6}, old[4], other[4] = {9, 9, 9, 9}, back[4];
  for (int i = 0; i < 4; i++) p[i] = was[i];
  __u128AtomicCAS(p, was, next, old); out[t] = p[0] + 1000 * old[3]; __u128AtomicCAS_block(p, was, other, old);
  out[128 + t] = old[1] + 1000 * p[1]; __u128AtomicCAS_system(p, next, was, old); out[256 + t] = p[2] + 10 * old[2];
  __u128AtomicExch(p, other, old); __u128AtomicExch_block(p, next, back); __u128AtomicExch_system(p, was, other);
  out[384 + t] = old[1] + 10 * back[1] + 100 * other[3] + 1000 * p[3];""",
        lambda x: [x[:THREADS] + 4000, 1001 * T, np.full(THREADS, 53), np.full(THREADS, 4692)],
    ),
    Program(
        "intrinsics",
        "copies",
        "__nv_memcpy_async_shared_global_4 __nv_memcpy_async_shared_global_8"
        " __nv_memcpy_async_shared_global_16",
        """__shared__ alignas(16) unsigned s[128]; if (t < 32) __nv_memcpy_async_shared_global_4(s + t, in + t, 4);
  else if (t < 48) __nv_memcpy_async_shared_global_8(s + 32 + 2 * (t - 32), in + 32 + 2 * (t - 32), 8);
  else if (t < 64) __nv_memcpy_async_shared_global_16(s + 64 + 4 * (t - 48), in + 64 + 4 * (t - 48), 8);
  asm volatile("cp.async.wait_all;" ::: "memory"); __syncthreads(); out[t] = s[t];""",
        lambda x: np.where((T >= 64) & (T % 4 > 1), 0, x[:THREADS]),
    ),
    Program(
        "intrinsics",
        "texts",
        "nan nanf clock clock64 __activemask",
        """out[t] = __float_as_uint(nanf("")) & 0x7fffffff; out[128 + t] = __double2hiint(nan("")) & 0x7fffffff;
  out[256 + t] = t & 1 ? __activemask() : 0; out[384 + t] = clock64() >= 0;""",
        lambda x: [
            np.full(THREADS, 0x7FC00000),
            np.full(THREADS, 0x7FF80000),
            np.where(T & 1, 0xAAAAAAAA, 0),
            np.ones(THREADS),
        ],
    ),
    Program(
        "cuda::pipeline",
        "pipeline_primitives",
        "__pipeline_memcpy_async __pipeline_commit __pipeline_wait_prior",
        """__shared__ __align__(16) unsigned s[256];
  __pipeline_memcpy_async(s + t, in + t, 4); __pipeline_commit();
  if (t < 32) __pipeline_memcpy_async(s + 128 + 4 * t, in + 128 + 4 * t, 16, 4); __pipeline_commit();
  __pipeline_wait_prior(1); __syncthreads(); out[t] = s[127 - t];
  __pipeline_wait_prior(0); __syncthreads(); out[128 + t] = s[128 + t];""",
        lambda x: [x[:THREADS][::-1], np.where(T % 4 < 3, x[128:256], 0)],
    ),
    Program(
        "cuda::atomic_ref",
        "ref_as_a_value",
        "operator= operator_T",
        f"""__shared__ unsigned s[128]; {REF % "block"} r(s[t]); unsigned kept = (r = in[t]);
  __syncthreads(); {REF % "block"} other(s[127 - t]); out[t] = other; out[128 + t] = kept;""",
        lambda x: [x[:THREADS][::-1], x[:THREADS]],
    ),
)
