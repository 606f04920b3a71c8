"""cooperative_groups, by the CUDA guide's chapter of that name."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.headers.groups.program import THREADS, Program, T, rows


def _program(name: str, calls: str, body: str, expected, **more) -> Program:
    return Program("cooperative_groups", f"cg_{name}", calls, body, expected, **more)


def _each(rows: Any, width: int) -> np.ndarray:
    """A number for each group, told by all its threads."""
    return np.repeat(rows, width).astype(np.uint32)


def _labels(x: np.ndarray) -> np.ndarray:
    """Of each thread, how many of its warp have its label (x % 3), and their sum."""
    found = []
    for warp in rows(x, 32):
        for value in warp:
            same = warp[warp % 3 == value % 3]
            found += [len(same), same.sum()]
    return np.array(found, np.uint32)


def _of_coalesced(x: np.ndarray) -> np.ndarray:
    out = np.zeros(384, np.uint32)
    for warp in range(4):
        lanes = [t for t in range(32 * warp, 32 * warp + 32) if t % 3 == 0]
        for rank, t in enumerate(lanes):
            out[t] = 100 * len(lanes) + rank
            out[128 + t] = x[lanes[1]]
            out[256 + t] = any(x[u] > 90 for u in lanes) + 2 * all(x[u] < 97 for u in lanes) + 4
    return out


def _of_matches(x: np.ndarray) -> np.ndarray:
    out = np.zeros(768, np.uint32)
    for warp in range(4):
        lanes = [t for t in range(32 * warp, 32 * warp + 32) if t % 3 == 0]
        key = [x[t] % 4 for t in lanes]
        for rank, t in enumerate(lanes):
            out[t] = x[lanes[rank - 2] if rank >= 2 else t]
            out[128 + t] = sum(1 << other for other, v in enumerate(key) if v == key[rank])
            out[512 + t], out[640 + t] = (1 << len(lanes)) - 1, 1
    return out


def _updates(x: np.ndarray) -> np.ndarray:
    out = np.zeros(96, np.uint32)
    row, total = x[:32].astype(np.uint32), x[:32].sum()
    out[0], out[1] = 7 + x[:THREADS].sum(), total
    out[32:64] = 100 + np.cumsum(row) - row
    out[64:96] = 100 + total + np.cumsum(row)
    return out


PROGRAMS = (
    _program(
        "block",
        "this_thread_block sync thread_rank num_threads size group_index thread_index dim_threads"
        " group_dim",
        """auto g = cg::this_thread_block(); __shared__ unsigned s[128];
  s[g.thread_rank()] = in[t]; g.sync();
  out[t] = s[(t + 1) % g.num_threads()] + 1000 * g.group_index().x + 10000 * g.thread_index().y
    + 100 * (g.dim_threads().x == 128) + 200 * (g.size() == 128) + 400 * (g.group_dim().y == 1);""",
        lambda x: np.roll(x[:THREADS], -1) + 700,
    ),
    _program(
        "block_split",
        "barrier_arrive barrier_wait",
        """auto g = cg::this_thread_block(); __shared__ unsigned s[128];
  s[t] = in[t]; auto token = g.barrier_arrive(); unsigned own = in[t];
  g.barrier_wait(std::move(token)); out[t] = s[127 - t] + own;""",
        lambda x: x[:THREADS][::-1] + x[:THREADS],
    ),
    _program(
        "this_thread",
        "this_thread thread_rank num_threads",
        "auto g = cg::this_thread(); g.sync(); out[t] = g.num_threads() * 10 + g.thread_rank();",
        lambda x: np.full(THREADS, 10, np.uint32),
    ),
    _program(
        "tile_shuffles",
        "tiled_partition<N> shfl shfl_up shfl_down shfl_xor thread_rank meta_group_rank"
        " meta_group_size num_threads",
        """auto g = cg::tiled_partition<8>(cg::this_thread_block()); unsigned v = in[t];
  unsigned n = g.num_threads() * 1000 + g.meta_group_size() * 10000;
  out[t] = g.shfl(v, 3) + n; out[128 + t] = g.shfl_up(v, 2); out[256 + t] = g.shfl_down(v, 1);
  out[384 + t] = g.shfl_xor(v, 5); out[512 + t] = g.meta_group_rank() * 8 + g.thread_rank();""",
        lambda x: [
            _each(rows(x, 8)[:, 3], 8) + 168000,
            np.where(T % 8 >= 2, np.roll(x[:THREADS], 2), x[:THREADS]),
            np.where(T % 8 < 7, np.roll(x[:THREADS], -1), x[:THREADS]),
            x[T ^ 5],
            T,
        ],
    ),
    _program(
        "tile_votes",
        "any all ballot match_any match_all",
        """auto g = cg::tiled_partition<16>(cg::this_thread_block()); unsigned v = in[t] & 3; int same;
  out[t] = g.any(v == 3); out[128 + t] = g.all(v < 3); out[256 + t] = g.ballot(v == 1);
  out[384 + t] = g.match_any(v); g.match_all(v / 4, same); out[512 + t] = same;""",
        lambda x: [
            _each((rows(x & 3, 16) == 3).any(1), 16),
            _each((rows(x & 3, 16) < 3).all(1), 16),
            _each((np.equal(rows(x & 3, 16), 1) << np.arange(16)).sum(1), 16),
            np.concatenate(
                [((row[:, None] == row) << np.arange(16)).sum(1) for row in rows(x & 3, 16)]
            ),
            np.ones(THREADS),
        ],
    ),
    _program(
        "tile_of_any_size",
        "tiled_partition tile.sync",
        """auto g = cg::tiled_partition(cg::this_thread_block(), 4); g.sync();
  out[t] = g.size() * 100 + g.thread_rank();""",
        lambda x: 400 + T % 4,
    ),
    _program(
        "wide_tile",
        "block_tile_memory thread_block_tile<64>",
        """__shared__ cg::block_tile_memory<128> m; auto b = cg::this_thread_block(m);
  auto g = cg::tiled_partition<64>(b); out[t] = cg::reduce(g, in[t], cg::plus<unsigned>());
  out[128 + t] = g.any(in[t] == 96) + 10 * g.thread_rank();""",
        lambda x: [
            _each(rows(x, 64).sum(1), 64),
            _each((rows(x, 64) == 96).any(1), 64) + 10 * (T % 64),
        ],
    ),
    _program(
        "coalesced",
        "coalesced_threads coalesced_group.shfl coalesced_group.shfl_down coalesced_group.any"
        " coalesced_group.all coalesced_group.ballot coalesced_group.num_threads",
        """if (t % 3 == 0) { auto g = cg::coalesced_threads();
  out[t] = g.num_threads() * 100 + g.thread_rank(); out[128 + t] = g.shfl(in[t], 1);
  out[256 + t] = g.any(in[t] > 90) + 2 * g.all(in[t] < 97) + 4 * (g.ballot(true) == (1u << g.size()) - 1); }""",
        _of_coalesced,
    ),
    _program(
        "coalesced_matches",
        "coalesced_group.shfl_up coalesced_group.match_any coalesced_group.match_all",
        """if (t % 3 == 0) { auto g = cg::coalesced_threads(); int same; unsigned v = in[t] % 4;
  out[t] = g.shfl_up(in[t], 2); out[128 + t] = g.match_any(v); out[256 + t] = g.match_all(v, same);
  out[384 + t] = same; out[512 + t] = g.match_all(7, same); out[640 + t] = same; }""",
        _of_matches,
    ),
    _program(
        "labeled",
        "labeled_partition reduce",
        """auto w = cg::tiled_partition<32>(cg::this_thread_block());
  auto g = cg::labeled_partition(w, in[t] % 3);
  out[2 * t] = g.num_threads(); out[2 * t + 1] = cg::reduce(g, in[t], cg::plus<unsigned>());""",
        _labels,
    ),
    _program(
        "binary",
        "binary_partition",
        """auto w = cg::tiled_partition<32>(cg::this_thread_block());
  auto g = cg::binary_partition(w, (in[t] & 1) != 0); out[t] = g.num_threads();""",
        lambda x: np.concatenate(
            [np.where(r & 1, (r & 1).sum(), (~r & 1).sum()) for r in rows(x, 32)]
        ),
    ),
    _program(
        "reductions",
        "reduce plus less greater bit_and bit_or bit_xor",
        """auto g = cg::tiled_partition<32>(cg::this_thread_block()); unsigned v = in[t];
  out[t] = cg::reduce(g, v, cg::plus<unsigned>()); out[128 + t] = cg::reduce(g, v, cg::less<unsigned>());
  out[256 + t] = cg::reduce(g, v, cg::greater<unsigned>()); out[384 + t] = cg::reduce(g, v, cg::bit_and<unsigned>());
  out[512 + t] = cg::reduce(g, v, cg::bit_or<unsigned>()); out[640 + t] = cg::reduce(g, v, cg::bit_xor<unsigned>());
  out[768 + t] = (unsigned)cg::reduce(g, (float)v, cg::plus<float>());
  out[896 + t] = (unsigned)cg::reduce(g, (double)v, cg::less<double>());""",
        lambda x: np.concatenate(
            [
                _each(of.reduce(rows(x, 32), axis=1), 32)
                for of in (
                    np.add,
                    np.minimum,
                    np.maximum,
                    np.bitwise_and,
                    np.bitwise_or,
                    np.bitwise_xor,
                    np.add,
                    np.minimum,
                )
            ]
        ),
    ),
    _program(
        "scans",
        "inclusive_scan exclusive_scan",
        """auto g = cg::tiled_partition<16>(cg::this_thread_block()); unsigned v = in[t];
  out[t] = cg::inclusive_scan(g, v); out[128 + t] = cg::exclusive_scan(g, v);
  out[256 + t] = cg::inclusive_scan(g, v, cg::greater<unsigned>());""",
        lambda x: [
            np.cumsum(rows(x, 16), axis=1).reshape(-1),
            (np.cumsum(rows(x, 16), axis=1) - rows(x, 16)).reshape(-1),
            np.maximum.accumulate(rows(x, 16), axis=1).reshape(-1),
        ],
    ),
    _program(
        "updates",
        "reduce_update_async reduce_store_async inclusive_scan_update exclusive_scan_update",
        """auto g = cg::tiled_partition<32>(cg::this_thread_block());
  __shared__ cuda::atomic<unsigned, cuda::thread_scope_block> sum, base;
  if (t == 0) { sum = 7; base = 100; } __syncthreads();
  cg::reduce_update_async(g, sum, in[t], cg::plus<unsigned>()); __syncthreads();
  if (t == 0) out[0] = sum;
  if (t < 32) { out[32 + t] = cg::exclusive_scan_update(g, base, in[t], cg::plus<unsigned>()); g.sync();
    out[64 + t] = cg::inclusive_scan_update(g, base, in[t], cg::plus<unsigned>()); g.sync();
    cg::reduce_store_async(g, sum, in[t], cg::plus<unsigned>()); g.sync(); if (t == 0) out[1] = sum; }""",
        _updates,
    ),
    _program(
        "copies",
        "memcpy_async wait wait_prior",
        """auto g = cg::this_thread_block(); __shared__ alignas(16) unsigned a[128], b[128];
  cg::memcpy_async(g, a, in, cuda::aligned_size_t<16>(sizeof(a)));
  cg::memcpy_async(g, b, in + 128, sizeof(b)); cg::wait_prior<1>(g); out[t] = a[127 - t];
  cg::wait(g); out[128 + t] = b[127 - t];""",
        lambda x: [x[:128][::-1], x[128:256][::-1]],
    ),
    _program(
        "one",
        "invoke_one invoke_one_broadcast",
        """auto g = cg::tiled_partition<32>(cg::this_thread_block());
  cg::invoke_one(g, [&] { atomicAdd(out + 512, 1u); });
  out[t] = cg::invoke_one_broadcast(g, [&] { return in[t / 32]; });""",
        lambda x: [_each(x[:4], 32), np.zeros(512 - THREADS, np.uint32), [np.uint32(4)]],
    ),
    _program(
        "cluster",
        "this_cluster cluster.sync block_rank num_blocks map_shared_rank query_shared_rank"
        " cluster.thread_rank cluster.num_threads dim_blocks block_index",
        """auto c = cg::this_cluster(); __shared__ unsigned s[128];
  s[t] = in[128 * c.block_rank() + t]; c.sync();
  unsigned* peer = c.map_shared_rank(s, c.block_rank() ^ 1);
  out[c.thread_rank()] = peer[t] + 1000 * c.query_shared_rank(peer) + 10000 * c.num_blocks()
    + 100000 * (c.num_threads() == 256) + 200000 * (c.dim_blocks().x == 2)
    + 400000 * (c.block_index().x == blockIdx.x); c.sync();""",
        lambda x: [x[128:256] + 721000, x[:128] + 720000],
        grid=2,
        cluster=2,
    ),
    _program(
        "cluster_split",
        "cluster.barrier_arrive cluster.barrier_wait",
        """auto c = cg::this_cluster(); __shared__ unsigned s[128]; s[t] = in[t] + c.block_rank();
  auto token = c.barrier_arrive(); c.barrier_wait(std::move(token));
  out[c.thread_rank()] = *c.map_shared_rank(s + t, 1 - c.block_rank()); c.sync();""",
        lambda x: [x[:128] + 1, x[:128]],
        grid=2,
        cluster=2,
    ),
    _program(
        "grid",
        "this_grid grid.sync grid.thread_rank grid.num_blocks grid.block_rank grid.size is_valid",
        """auto g = cg::this_grid(); out[512 + g.thread_rank()] = in[g.thread_rank()]; g.sync();
  out[g.thread_rank()] = out[512 + g.size() - 1 - g.thread_rank()] + 1000 * g.num_blocks()
    + 10000 * (g.block_rank() == blockIdx.x) + 20000 * g.is_valid();""",
        lambda x: x[:256][::-1] + 32000,
        grid=2,
        cooperative=True,
    ),
)
