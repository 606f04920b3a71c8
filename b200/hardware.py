"""Constants of the hardware, with their source and grade (c certain, l likely, u unsure).

| constant | value | source | grade |
|---|---|---|---|
| SM_COUNT | 148 | device query on a B200 | c |
| SMEM_OPT_IN | 232,448 bytes a CTA (227 KB) | device query; CUDA programming guide | c |
| SMEM_BYTES | 233,472 bytes an SM (228 KB); 1 KB of a CTA is reserved | device query | c |
| SMEM_BASE | a CTA's own shared memory begins at offset 0x400 | measured on an H200 | l |
| RANK_SHIFT | a shared::cluster address is (rank << 24) + offset | measured on an H200 | l |
| TMEM_LANES, TMEM_COLUMNS | 128 lanes of 512 columns of 32 bits | PTX ISA 9.7.16.1 | c |
| MAX_CLUSTER | 16 CTAs (above 8 non-portable) | CUDA programming guide | c |
| MAX_THREADS | 1024 a CTA | CUDA programming guide | c |
| NAME | NVIDIA B200 | device query | c |
| MEMORY_BYTES | 191,503,400,960 (178.35 GiB) | device query on a B200 | c |
| L2_BYTES | 132,644,864 (126.5 MiB) | device query on a B200 | c |
| L2_PERSISTING_BYTES | 24,870,912: 3/16 of L2 | device query on a B200 (24.87 MB) | l |
| ACCESS_WINDOW_BYTES | 134,213,632 | device queries of sm_80 to sm_90; not seen of a B200 | u |
| CLOCK_KHZ, MEMORY_CLOCK_KHZ | 1,965,000 and 3,996,000 | device query on a B200 | c |
| MEMORY_BUS_BITS | 7680 | device query on a B200 | c |
| GPC_SMS, STRAY_TPCS | 8 GPCs; 3 TPCs apart in the first | QuickRunCUDA (B300), I6 and I8 | b |
| SM_REGISTERS, SM_THREADS, SM_CTAS | 65,536, 2048, 32 | CUDA programming guide, 10.0 | c |
| SMEM_DEFAULT | 49,152 bytes a CTA without opt-in | CUDA programming guide | c |
| SMEM_RESERVED | 1024 bytes of each resident CTA are the system's | CUDA programming guide | c |
| SMEM_LENT | a kernel may use the first 288 of these | special registers of an H100 | l |
| MAX_GRID | (2^31 - 1, 65,535, 65,535) CTAs | CUDA programming guide | c |
| MAX_BLOCK | (1024, 1024, 64) threads | CUDA programming guide | c |
| PARAM_BYTES | 32,764 bytes | CUDA 12.1 release notes, sm_70 and later | c |
"""

SM_COUNT = 148
SMEM_OPT_IN = 232_448
SMEM_BYTES = 233_472
SMEM_BASE = 0x400
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
TMEM_LANES, TMEM_COLUMNS = 128, 512
MAX_CLUSTER = 16
MAX_THREADS = 1024
PARAM_BYTES = 32_764
COMPUTE_CAPABILITY = (10, 0)
NAME = "NVIDIA B200"
MEMORY_BYTES = 191_503_400_960
L2_BYTES = 132_644_864
L2_PERSISTING_BYTES, ACCESS_WINDOW_BYTES = L2_BYTES * 3 // 16, 134_213_632
CLOCK_KHZ, MEMORY_CLOCK_KHZ = 1_965_000, 3_996_000
MEMORY_BUS_BITS = 7680
# GPC 0 has five TPCs and three strays, which share a cluster with no other SM; the others have
# nine, and three of them (which ones is not told) a tenth. 33 clusters of 4 on a B200 (NCU1) and
# 15 of 8 (I8: the 16th begins again at the first one's SMs) are what then fits.
GPC_SMS, STRAY_TPCS = (16, 18, 18, 18, 18, 20, 20, 20), 3
SM_REGISTERS, SM_THREADS, SM_CTAS = 65_536, 2048, 32
SMEM_DEFAULT = 49_152
SMEM_RESERVED = 1024
SMEM_LENT = 288
MAX_GRID, MAX_BLOCK = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64)
