"""cub's algorithms of a warp; four warps of a block each do their own 32 numbers."""

from __future__ import annotations

import numpy as np

from lab.headers.groups.program import THREADS, Program, rows


def _of(name: str, calls: str, body: str, expected) -> Program:
    return Program("cub warp", f"warp_{name}", calls, body, expected)


def _cub(kind: str) -> str:
    return f"typedef cub::{kind} W; __shared__ typename W::TempStorage m[4]; W w(m[t / 32]);"


def _segments(x: np.ndarray, tail: bool) -> np.ndarray:
    """The sum of each segment at its first lane; heads, or tails, are where x % 5 == 0."""
    found = np.zeros(THREADS, np.uint32)
    for first in range(0, THREADS, 32):
        flags = x[first : first + 32] % 5 == 0
        start = 0
        for lane in range(32):
            ends = lane == 31 or (flags[lane] if tail else flags[lane + 1])
            if ends:
                found[first + start] = x[first + start : first + lane + 1].sum()
                start = lane + 1
    return found


def _scan(x: np.ndarray, width: int = 32) -> np.ndarray:
    return np.cumsum(rows(x, width), axis=1).reshape(-1).astype(np.uint32)


def _starts(x: np.ndarray, tail: bool) -> np.ndarray:
    """Which lanes are the first of a segment."""
    flags = rows(x % 5 == 0).copy()
    if tail:
        flags = np.roll(flags, 1, axis=1)
    flags[:, 0] = True
    return flags.reshape(-1)


def _sorted_pairs(x: np.ndarray) -> list[np.ndarray]:
    """Keys of four a thread, 128 a warp, and with them the place that each came from (stable)."""
    keys, places = [], []
    for warp in range(4):
        own = np.resize(x, 512)[128 * warp : 128 * warp + 128]
        order = np.argsort(own, kind="stable")
        keys.append(own[order])
        places.append(order)
    return [*keys, *places]


PROGRAMS = (
    _of(
        "reduce",
        "WarpReduce::Sum WarpReduce::Reduce",
        _cub("WarpReduce<unsigned>")
        + """ unsigned v = in[t]; unsigned a = w.Sum(v); __syncwarp();
  unsigned b = w.Reduce(v, ::cuda::maximum<>{}); __syncwarp(); unsigned c = w.Reduce(v, ::cuda::minimum<>{});
  if (t % 32 == 0) { out[t / 32] = a; out[4 + t / 32] = b; out[8 + t / 32] = c; }""",
        lambda x: [rows(x).sum(1), rows(x).max(1), rows(x).min(1)],
    ),
    _of(
        "reduce_valid",
        "WarpReduce::Sum(valid) WarpReduce<T,16>",
        "typedef cub::WarpReduce<unsigned, 16> W; __shared__ typename W::TempStorage m[8]; W w(m[t / 16]);"
        " unsigned a = w.Sum(in[t], 5); __syncwarp(); unsigned b = w.Sum(in[t]);"
        " if (t % 16 == 0) { out[t / 16] = a; out[8 + t / 16] = b; }",
        lambda x: [rows(x, 16)[:, :5].sum(1), rows(x, 16).sum(1)],
    ),
    _of(
        "segmented",
        "WarpReduce::HeadSegmentedSum WarpReduce::TailSegmentedSum WarpReduce::HeadSegmentedReduce"
        " WarpReduce::TailSegmentedReduce",
        _cub("WarpReduce<unsigned>")
        + """ unsigned v = in[t], f = v % 5 == 0; unsigned a = w.HeadSegmentedSum(v, f); __syncwarp();
  unsigned b = w.TailSegmentedSum(v, f); __syncwarp(); bool last = t % 32 == 31;
  bool head = t % 32 == 0 || f, tail = t % 32 == 0 || in[t - 1] % 5 == 0; (void)last;
  unsigned c = w.HeadSegmentedReduce(v, f, ::cuda::std::plus<>{}); __syncwarp();
  unsigned d = w.TailSegmentedReduce(v, f, ::cuda::std::plus<>{});
  out[t] = head ? a : 0; out[128 + t] = tail ? b : 0; out[256 + t] = head ? c : 0; out[384 + t] = tail ? d : 0;""",
        lambda x: np.concatenate(
            2
            * [
                np.where(_starts(x, False), _segments(x, False), 0),
                np.where(_starts(x, True), _segments(x, True), 0),
            ]
        ),
    ),
    _of(
        "scan",
        "WarpScan::InclusiveSum WarpScan::ExclusiveSum WarpScan::InclusiveScan WarpScan::ExclusiveScan"
        " WarpScan::Broadcast WarpScan::Scan",
        _cub("WarpScan<unsigned>")
        + """ unsigned v = in[t], a, b, c, d, e, f, g, s; w.InclusiveSum(v, a, s); __syncwarp(); w.ExclusiveSum(v, b);
  __syncwarp(); w.InclusiveScan(v, c, ::cuda::maximum<>{}); __syncwarp();
  w.ExclusiveScan(v, d, 3u, ::cuda::maximum<>{}); __syncwarp(); e = w.Broadcast(v, 7); __syncwarp();
  w.Scan(v, f, g, 0u, ::cuda::std::plus<>{});
  out[t] = a; out[128 + t] = b; out[256 + t] = c; out[384 + t] = d; out[512 + t] = e; out[640 + t] = f + g + s;""",
        lambda x: [
            _scan(x),
            _scan(x) - x[:THREADS],
            np.maximum.accumulate(rows(x), axis=1).reshape(-1),
            np.concatenate([[3, *np.maximum.accumulate(np.maximum(r, 3))[:-1]] for r in rows(x)]),
            np.repeat(rows(x)[:, 7], 32),
            2 * _scan(x) - x[:THREADS] + np.repeat(rows(x).sum(1), 32),
        ],
    ),
    _of(
        "double_scan",
        "WarpScan<double> WarpReduce<double>",
        "typedef cub::WarpScan<double> W; __shared__ W::TempStorage m[4]; double d; W(m[t / 32]).InclusiveSum(in[t], d);"
        " typedef cub::WarpReduce<double> R; __shared__ R::TempStorage q[4]; double r = R(q[t / 32]).Sum(in[t]);"
        " out[t] = d; if (t % 32 == 0) out[128 + t / 32] = r;",
        lambda x: [_scan(x), rows(x).sum(1)],
    ),
    _of(
        "exchange",
        "WarpExchange::BlockedToStriped WarpExchange::StripedToBlocked WarpExchange::ScatterToStriped",
        _cub("WarpExchange<unsigned, 4>")
        + """ unsigned v[4]; for (int i = 0; i < 4; i++) v[i] = in[4 * t + i];
  w.BlockedToStriped(v, v); for (int i = 0; i < 4; i++) out[128 * (t / 32) + 32 * i + t % 32] = v[i]; __syncwarp();
  w.StripedToBlocked(v, v); for (int i = 0; i < 4; i++) out[512 + 4 * t + i] = v[i]; __syncwarp();
  int r[4]; for (int i = 0; i < 4; i++) r[i] = 127 - (4 * (t % 32) + i); w.ScatterToStriped(v, r);
  for (int i = 0; i < 4; i++) out[1024 + 128 * (t / 32) + 32 * i + t % 32] = v[i];""",
        lambda x: [x, x, x.reshape(4, 128)[:, ::-1].reshape(-1)],
    ),
    *(
        _of(
            f"load_store_{n}",
            f"WarpLoad<{load}> WarpStore<{store}>",
            f"typedef cub::WarpLoad<unsigned, 4, cub::{load}> L; typedef cub::WarpStore<unsigned, 4, cub::{store}> S;"
            " __shared__ L::TempStorage l[4]; __shared__ S::TempStorage s[4]; unsigned v[4];"
            " L(l[t / 32]).Load(in + 128 * (t / 32), v); __syncwarp(); for (int i = 0; i < 4; i++) v[i] += i;"
            " S(s[t / 32]).Store(out + 128 * (t / 32), v);",
            lambda x, striped="STRIPED" in load: (
                x + (np.arange(512) // 32 % 4 if striped else np.arange(512) % 4).astype(np.uint32)
            ),
        )
        for n, (load, store) in enumerate(
            (f"WARP_LOAD_{how}", f"WARP_STORE_{how}")
            for how in ("DIRECT", "STRIPED", "VECTORIZE", "TRANSPOSE")
        )
    ),
    _of(
        "merge_sort_keys",
        "WarpMergeSort::Sort",
        _cub("WarpMergeSort<unsigned, 4>")
        + """ unsigned k[4]; for (int i = 0; i < 4; i++) k[i] = in[4 * t + i];
  w.Sort(k, ::cuda::std::greater<>{}); for (int i = 0; i < 4; i++) out[4 * t + i] = k[i];""",
        lambda x: np.sort(x.reshape(4, 128), axis=1)[:, ::-1].reshape(-1),
    ),
    _of(
        "merge_sort",
        "WarpMergeSort::StableSort",
        _cub("WarpMergeSort<unsigned, 4, 32, unsigned>")
        + """ unsigned k[4], v[4]; for (int i = 0; i < 4; i++) { k[i] = in[4 * t + i]; v[i] = 4 * (t % 32) + i; }
  w.StableSort(k, v, ::cuda::std::less<>{});
  for (int i = 0; i < 4; i++) { out[4 * t + i] = k[i]; out[512 + 4 * t + i] = v[i]; }""",
        _sorted_pairs,
    ),
)
