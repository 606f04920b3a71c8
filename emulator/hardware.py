"""Constants of the hardware, with their source and grade (c certain, l likely).

| constant | value | source | grade |
|---|---|---|---|
| SM_COUNT | 148 | device query on a B200 | c |
| SMEM_OPT_IN | 232,448 bytes a CTA (227 KB) | device query; CUDA programming guide | c |
| MAX_CLUSTER | 16 CTAs (above 8 non-portable) | CUDA programming guide | c |
| MAX_THREADS | 1024 a CTA | CUDA programming guide | c |
| PARAM_BYTES | 32,764 bytes | CUDA 12.1 release notes, sm_70 and later | c |
"""

SM_COUNT = 148
SMEM_OPT_IN = 232_448
MAX_CLUSTER = 16
MAX_THREADS = 1024
PARAM_BYTES = 32_764
COMPUTE_CAPABILITY = (10, 0)
