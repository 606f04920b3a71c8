"""What CUDA's C++ headers have for groups of threads: programs by hand, an entry for each function.

program.py      what a program is, and how it is run
cooperative.py  cooperative_groups
libcu.py        cuda::barrier, cuda::pipeline, cuda::atomic_ref, and intrinsics of no value
cub_warp.py     cub's algorithms of a warp
cub_block.py    cub's algorithms of a block
"""

from lab.headers.groups import cooperative, cub_block, cub_warp, libcu
from lab.headers.groups.program import Program

PROGRAMS: tuple[Program, ...] = (
    *cooperative.PROGRAMS,
    *libcu.PROGRAMS,
    *cub_warp.PROGRAMS,
    *cub_block.PROGRAMS,
)
