// Tensor memory and the tensor core of a B200 in software, for a Hopper GPU (sm_90).
//
// rewrite.py puts a call of one of these functions in place of each tcgen05 instruction; the thread (or warp) that
// would issue the instruction carries it out, in program order. No header is needed, so NVRTC takes the file as it is.
//
// Tensor memory of a CTA is 128 lanes x 512 columns of 32 bits in global memory (`Slot`), lane by lane. It is accessed
// with relaxed gpu-scope operations only, which never hit a stale L1 line, since the issuing CTA of a pair writes the
// tensor memory of both. Meaning of the instructions: PTX ISA 9.7.16.

typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 128
#define COLUMNS 512
#define FUNCTION extern "C" __device__ __noinline__
#define INLINE static __device__ __forceinline__

struct Slot {
    u32 cells[LANES * COLUMNS];
};

// Set by the host before a launch: a Slot a CTA, and after them an allocation bitmap a CTA (a bit for 32 columns).
extern "C" {
__device__ u64 hopper_slots;
__device__ u64 hopper_bitmaps;
}

// ---- where things are ----------------------------------------------------------------------------------------------

INLINE u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

INLINE u32 lane_id() {
    u32 r;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(r));
    return r;
}

INLINE u32 warp_index() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32;
}

// Index of the slot of the CTA with this rank in the own cluster.
INLINE u32 slot_of(u32 rank) {
    u32 x, y, z, nx, ny, size;
    asm volatile("mov.u32 %0, %%clusterid.x;\n\tmov.u32 %1, %%clusterid.y;\n\tmov.u32 %2, %%clusterid.z;"
                 : "=r"(x), "=r"(y), "=r"(z));
    asm volatile("mov.u32 %0, %%nclusterid.x;\n\tmov.u32 %1, %%nclusterid.y;\n\tmov.u32 %2, %%cluster_nctarank;"
                 : "=r"(nx), "=r"(ny), "=r"(size));
    return (x + nx * (y + ny * z)) * size + rank;
}

INLINE u32* cells_of(u32 rank) { return ((Slot*)hopper_slots)[slot_of(rank)].cells; }

INLINE u32* cell(u32* cells, u32 lane, u32 column) { return cells + lane * COLUMNS + column; }

INLINE u32 load_cell(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

INLINE void store_cell(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

INLINE uint4 load_shared(u32 rank, u32 offset) {
    u32 at;
    uint4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(offset), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

// Offset in the CTA's shared memory of byte `kb` (a multiple of 16) of row `r` of a K-major matrix descriptor.
INLINE u32 k_major(u64 descriptor, u32 r, u32 kb) {
    u32 start = (u32)(descriptor & 0x3FFF) << 4;
    u32 lbo = (u32)(descriptor >> 16 & 0x3FFF) << 4, sbo = (u32)(descriptor >> 32 & 0x3FFF) << 4;
    u32 base = (u32)(descriptor >> 49 & 7), mode = (u32)(descriptor >> 61);
    if (mode == 0) return start + (r >> 3) * sbo + (r & 7) * 16 + (kb >> 4) * lbo;
    u32 span = mode <= 2 ? 128 : mode == 4 ? 64 : 32;
    u32 a = start + (r >> 3) * sbo + (r & 7) * span + kb;
    if (mode == 1) return a ^ ((a >> 7 & 3) << 5);
    u32 bits = mode == 2 ? 7 : mode == 4 ? 3 : 1;
    return a ^ ((((a >> 7) - base) & bits) << 4);
}

INLINE uint4 operand(u32 rank, u64 descriptor, u32 r, u32 chunk) {
    return load_shared(rank, k_major(descriptor, r, 16 * chunk));
}
