"""cub's algorithms of a block of 128 threads, four numbers a thread where it takes several."""

from __future__ import annotations

import numpy as np

from lab.headers.groups.program import THREADS, Program


def _of(name: str, calls: str, body: str, expected) -> Program:
    return Program("cub block", f"block_{name}", calls, body, expected)


def _cub(kind: str) -> str:
    return f"typedef cub::{kind} B; __shared__ typename B::TempStorage m; B b(m);"


FOUR = " unsigned v[4]; for (int i = 0; i < 4; i++) v[i] = in[4 * t + i];"


def _out(at: int = 0, value: str = "v[i]") -> str:
    return f" for (int i = 0; i < 4; i++) out[{at} + 4 * t + i] = {value};"


def _runs(x: np.ndarray) -> np.ndarray:
    """Thread t's run is (t, x[t] % 3 + 1 times); the first 256 of what they decode to."""
    decoded = np.repeat(np.arange(THREADS), x[:THREADS] % 3 + 1)
    return np.concatenate([decoded, np.zeros(256, int)])[:128]


def _flags(x: np.ndarray) -> list[np.ndarray]:
    x = x // 40
    heads = np.array([1, *(x[1:] != x[:-1])])
    tails = np.array([*(x[1:] != x[:-1]), 1])
    return [heads, tails, heads + 2 * tails]


REDUCE = ("RAKING", "WARP_REDUCTIONS", "RAKING_COMMUTATIVE_ONLY")
SCAN = ("RAKING", "RAKING_MEMOIZE", "WARP_SCANS")
LOADS = (
    "DIRECT",
    "STRIPED",
    "VECTORIZE",
    "TRANSPOSE",
    "WARP_TRANSPOSE",
    "WARP_TRANSPOSE_TIMESLICED",
)

PROGRAMS = (
    *(
        _of(
            f"reduce_{how.lower()}",
            f"BlockReduce<{how}>::Sum BlockReduce<{how}>::Reduce",
            _cub(f"BlockReduce<unsigned, 128, cub::BLOCK_REDUCE_{how}>")
            + FOUR
            + " unsigned a = b.Sum(v); __syncthreads(); unsigned c = b.Sum(in[t], 77); __syncthreads();"
            " unsigned d = b.Reduce(v, ::cuda::std::plus<>{}); if (t == 0) { out[0] = a; out[1] = c; out[2] = d; }",
            lambda x: np.array([x.sum(), x[:77].sum(), x.sum()], np.uint32),
        )
        for how in REDUCE
    ),
    _of(
        "reduce_max",
        "BlockReduce::Reduce(maximum) BlockReduce<float>::Sum BlockReduce<double>::Sum",
        "typedef cub::BlockReduce<unsigned, 128> B; typedef cub::BlockReduce<float, 128> F;"
        " typedef cub::BlockReduce<double, 128> D; __shared__ B::TempStorage m; __shared__ F::TempStorage f;"
        " __shared__ D::TempStorage d; unsigned a = B(m).Reduce(in[t], ::cuda::maximum<>{});"
        " float s = F(f).Sum((float)in[t]); double e = D(d).Sum((double)in[t]);"
        " if (t == 0) { out[0] = a; out[1] = s; out[2] = e; }",
        lambda x: np.array([x[:128].max(), x[:128].sum(), x[:128].sum()], np.uint32),
    ),
    *(
        _of(
            f"scan_{how.lower()}",
            f"BlockScan<{how}>::InclusiveSum BlockScan<{how}>::ExclusiveSum"
            f" BlockScan<{how}>::InclusiveScan BlockScan<{how}>::ExclusiveScan",
            _cub(f"BlockScan<unsigned, 128, cub::BLOCK_SCAN_{how}>")
            + FOUR
            + " unsigned s, w[4]; b.ExclusiveSum(v, w, s); __syncthreads();"
            + _out(0, "w[i] + s")
            + " b.InclusiveSum(v, w); __syncthreads();"
            + _out(512, "w[i]")
            + " b.InclusiveScan(v, w, ::cuda::maximum<>{}); __syncthreads();"
            + _out(1024, "w[i]")
            + " unsigned one; b.ExclusiveScan(in[t], one, 2u, ::cuda::maximum<>{}); out[1536 + t] = one;",
            lambda x: [
                np.cumsum(x) - x + x.sum(),
                np.cumsum(x),
                np.maximum.accumulate(x),
                [2, *np.maximum.accumulate(np.maximum(x[:128], 2))[:-1]],
            ],
        )
        for how in SCAN
    ),
    _of(
        "radix_sort",
        "BlockRadixSort::Sort BlockRadixSort::SortDescending BlockRadixSort::SortBlockedToStriped",
        _cub("BlockRadixSort<unsigned, 128, 4, unsigned>")
        + FOUR
        + " unsigned p[4]; for (int i = 0; i < 4; i++) p[i] = 4 * t + i; b.Sort(v, p); __syncthreads();"
        + _out()
        + _out(512, "p[i]")
        + " b.SortDescending(v, p, 0, 7); __syncthreads();"
        + _out(1024)
        + " b.SortBlockedToStriped(v, p); for (int i = 0; i < 4; i++) out[1536 + 128 * i + t] = v[i];",
        lambda x: [np.sort(x), np.argsort(x, kind="stable"), np.sort(x)[::-1], np.sort(x)],
    ),
    _of(
        "radix_sort_striped",
        "BlockRadixSort::SortDescendingBlockedToStriped",
        _cub("BlockRadixSort<unsigned, 128, 4>") + FOUR + " b.SortDescendingBlockedToStriped(v);"
        " for (int i = 0; i < 4; i++) out[128 * i + t] = v[i];",
        lambda x: np.sort(x)[::-1],
    ),
    _of(
        "radix_sort_kinds",
        "BlockRadixSort<float> BlockRadixSort<int> BlockRadixSort<double>",
        "typedef cub::BlockRadixSort<float, 128, 1> F; typedef cub::BlockRadixSort<int, 128, 1> I;"
        " typedef cub::BlockRadixSort<double, 128, 1> D; __shared__ F::TempStorage f; __shared__ I::TempStorage i;"
        " __shared__ D::TempStorage d; float a[1] = {(float)in[t] - 40}; int c[1] = {(int)in[t] - 40};"
        " double e[1] = {(double)in[t] - 40}; F(f).Sort(a); I(i).Sort(c); D(d).Sort(e);"
        " out[t] = a[0] + 40; out[128 + t] = c[0] + 40; out[256 + t] = e[0] + 40;",
        lambda x: np.tile(np.sort(x[:128]), 3),
    ),
    _of(
        "radix_rank",
        "BlockRadixRank::RankKeys",
        "typedef cub::BlockRadixRank<128, 7, false> B; __shared__ B::TempStorage m; unsigned k[1] = {in[t]}; int r[1];"
        " B(m).RankKeys(k, r, cub::BFEDigitExtractor<unsigned>(0, 7)); out[t] = r[0];",
        lambda x: np.argsort(np.argsort(x[:128], kind="stable"), kind="stable"),
    ),
    _of(
        "merge_sort",
        "BlockMergeSort::Sort BlockMergeSort::StableSort",
        _cub("BlockMergeSort<unsigned, 128, 4, unsigned>")
        + FOUR
        + " unsigned p[4]; for (int i = 0; i < 4; i++) p[i] = 4 * t + i;"
        " b.StableSort(v, p, ::cuda::std::less<>{});"
        + _out()
        + _out(512, "p[i]")
        + " __syncthreads(); typedef cub::BlockMergeSort<unsigned, 128, 4> K; __shared__ K::TempStorage q;"
        " K(q).Sort(v, ::cuda::std::greater<>{});" + _out(1024),
        lambda x: [np.sort(x), np.argsort(x, kind="stable"), np.sort(x)[::-1]],
    ),
    _of(
        "exchange",
        "BlockExchange::BlockedToStriped BlockExchange::StripedToBlocked BlockExchange::BlockedToWarpStriped"
        " BlockExchange::WarpStripedToBlocked BlockExchange::ScatterToBlocked BlockExchange::ScatterToStriped",
        _cub("BlockExchange<unsigned, 128, 4>")
        + FOUR
        + " b.BlockedToStriped(v, v); for (int i = 0; i < 4; i++) out[128 * i + t] = v[i]; __syncthreads();"
        " b.StripedToBlocked(v, v);"
        + _out(512)
        + " __syncthreads(); b.BlockedToWarpStriped(v, v); __syncthreads(); b.WarpStripedToBlocked(v, v);"
        " __syncthreads(); int r[4]; for (int i = 0; i < 4; i++) r[i] = 511 - (4 * t + i);"
        " b.ScatterToBlocked(v, r); __syncthreads();"
        + _out(1024)
        + " b.ScatterToStriped(v, r); for (int i = 0; i < 4; i++) out[1536 + 128 * i + t] = v[i];",
        lambda x: [x, x, x[::-1], x],
    ),
    _of(
        "exchange_some",
        "BlockExchange::ScatterToStripedGuarded BlockExchange::ScatterToStripedFlagged",
        _cub("BlockExchange<unsigned, 128, 4>")
        + FOUR
        + " int r[4], g[4], f[4]; unsigned w[4]; for (int i = 0; i < 4; i++) {"
        " r[i] = 511 - (4 * t + i); f[i] = t % 2 == 0; g[i] = f[i] ? r[i] : -1; }"
        " b.ScatterToStripedGuarded(v, w, g); __syncthreads();"
        " for (int i = 0; i < 4; i++) if ((128 * i + t) / 4 % 2) out[128 * i + t] = w[i];"
        " b.ScatterToStripedFlagged(v, w, r, f);"
        " for (int i = 0; i < 4; i++) if ((128 * i + t) / 4 % 2) out[512 + 128 * i + t] = w[i];",
        lambda x: np.tile(np.where(np.arange(512) // 4 % 2, x[::-1], 0), 2),
    ),
    _of(
        "shuffle",
        "BlockShuffle::Offset BlockShuffle::Rotate BlockShuffle::Up BlockShuffle::Down",
        "typedef cub::BlockShuffle<unsigned, 128> W; __shared__ W::TempStorage m; W b(m);"
        + " unsigned v = in[t], a = 0; b.Offset(v, a, 3); out[t] = t < 125 ? a : 0; __syncthreads();"
        " b.Rotate(v, a, 5); out[128 + t] = a; __syncthreads(); unsigned u[2] = {in[2 * t], in[2 * t + 1]}, w[2] = {0, 0};"
        " b.Up(u, w); out[256 + 2 * t] = w[0]; out[257 + 2 * t] = w[1]; __syncthreads(); w[0] = w[1] = 0;"
        " b.Down(u, w); out[512 + 2 * t] = w[0]; out[513 + 2 * t] = w[1];",
        lambda x: [[*x[3:128], 0, 0, 0], np.roll(x[:128], -5), [0, *x[:255]], [*x[1:256], 0]],
    ),
    *(
        _of(
            f"load_store_{how.lower()}",
            f"BlockLoad<{how}> BlockStore<{how}>",
            f"typedef cub::BlockLoad<unsigned, 128, 4, cub::BLOCK_LOAD_{how}> L;"
            f" typedef cub::BlockStore<unsigned, 128, 4, cub::BLOCK_STORE_{how}> S;"
            " __shared__ L::TempStorage l; __shared__ S::TempStorage s; unsigned v[4]; L(l).Load(in, v);"
            " __syncthreads(); for (int i = 0; i < 4; i++) v[i] += i; S(s).Store(out, v);"
            " __syncthreads(); L(l).Load(in, v, 300, 7u); __syncthreads(); S(s).Store(out + 512, v, 400);",
            lambda x, striped=how == "STRIPED": [
                x + (np.arange(512) // 128 if striped else np.arange(512) % 4),
                x[:300],
                np.full(100, 7),
                np.zeros(112, int),
            ],
        )
        for how in LOADS
    ),
    *(
        _of(
            f"histogram_{how.lower()}",
            f"BlockHistogram<{how}>::Histogram BlockHistogram<{how}>::Composite",
            _cub(f"BlockHistogram<unsigned, 128, 4, 97, cub::BLOCK_HISTO_{how}>")
            + FOUR
            + " __shared__ unsigned h[97]; b.Histogram(v, h); __syncthreads(); if (t < 97) out[t] = h[t];"
            " __syncthreads(); for (int i = 0; i < 4; i++) v[i] = in[4 * t + i]; b.Composite(v, h); __syncthreads();"
            " if (t < 97) out[128 + t] = h[t];",
            lambda x: [
                np.bincount(x, minlength=97),
                np.zeros(31, int),
                2 * np.bincount(x, minlength=97),
            ],
        )
        for how in ("ATOMIC", "SORT")
    ),
    _of(
        "adjacent",
        "BlockAdjacentDifference::SubtractLeft BlockAdjacentDifference::SubtractRight",
        _cub("BlockAdjacentDifference<unsigned, 128>")
        + FOUR
        + " unsigned w[4]; b.SubtractLeft(v, w, ::cuda::std::minus<>{});"
        + _out(0, "w[i]")
        + " __syncthreads(); b.SubtractRight(v, w, ::cuda::std::minus<>{});"
        + _out(512, "w[i]"),
        lambda x: [[x[0]], np.diff(x), x[:-1] - x[1:], [x[-1]]],
    ),
    _of(
        "discontinuity",
        "BlockDiscontinuity::FlagHeads BlockDiscontinuity::FlagTails BlockDiscontinuity::FlagHeadsAndTails",
        _cub("BlockDiscontinuity<unsigned, 128>")
        + " unsigned v[4]; int h[4], e[4]; for (int i = 0; i < 4; i++) v[i] = in[4 * t + i] / 40;"
        " b.FlagHeads(h, v, ::cuda::std::not_equal_to<>{}); __syncthreads();"
        + _out(0, "h[i]")
        + " b.FlagTails(e, v, ::cuda::std::not_equal_to<>{}); __syncthreads();"
        + _out(512, "e[i]")
        + " b.FlagHeadsAndTails(h, e, v, ::cuda::std::not_equal_to<>{});"
        + _out(1024, "h[i] + 2 * e[i]"),
        _flags,
    ),
    _of(
        "run_length",
        "BlockRunLengthDecode::RunLengthDecode",
        "typedef cub::BlockRunLengthDecode<unsigned, 128, 1, 1> B; __shared__ B::TempStorage m; unsigned total;"
        " unsigned v[1] = {t}, n[1] = {in[t] % 3 + 1}; B b(m, v, n, total); unsigned d[1];"
        " b.RunLengthDecode(d, 0); out[t] = d[0];",
        _runs,
    ),
)
