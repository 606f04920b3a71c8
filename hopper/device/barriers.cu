// tcgen05.commit, and TMA loads whose barrier is in the other CTA of a pair.

INLINE u32 at_rank(u32 address, u32 rank) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}

// What this thread did before is visible to whoever sees what follows. The proxy fence is for the operands in shared
// memory: they were read as ordinary accesses, and TMA overwrites them next.
INLINE void release() {
    asm volatile("fence.proxy.async;\n\tfence.acq_rel.cluster;" ::: "memory");
}

INLINE void arrive(u32 address) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// tcgen05.commit: the work is done already, so it arrives; mask: CTAs of the cluster, 0 for the barrier as it is.
FUNCTION void hopper_commit(u32 barrier, u32 mask) {
    release();
    if (mask == 0) arrive(barrier);
    for (u32 rank = 0; rank < 16; rank++)
        if (mask >> rank & 1) arrive(at_rank(barrier, rank));
}

// A TMA load with cta_group::2 may signal a barrier of the peer; Hopper signals one of the destination CTA only. So
// the box is loaded to the own CTA with a barrier of ours (8 bytes a warp after dynamic shared memory), waited for,
// copied to the other destinations by this thread, and the barriers that a B200 would signal are told the bytes.
#define PRIVATE_BYTES (8 * 32)

// dynamic: address of dynamic shared memory.
INLINE u32 private_barrier(u32 dynamic) {
    u32 size, warp = warp_index();
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    return dynamic + size - PRIVATE_BYTES + 8 * warp;
}

// Bytes of the box of the tensormap at a generic address; no traversal strides.
INLINE u32 box_bytes(u64 map) {
    const u64* w = (const u64*)map;
    u32 code = w[1] >> 7 & 15;
    u32 total = code == 0 ? 1 : code == 1 || code == 6 || code == 10 ? 2 : code == 4 || code == 5 || code == 9 ? 8 : 4;
    total *= (u32)(w[6] >> 56) + 1;
    for (int i = 0; i < 4; i++) total *= (u32)(w[7] >> 8 * i & 0xFF) + 1;
    return total;
}

// Before the load: the barrier it shall signal.
FUNCTION u32 hopper_pair_begin(u64 map, u32 dynamic) {
    u32 barrier = private_barrier(dynamic);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.proxy.async;" ::"r"(barrier) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(box_bytes(map)) : "memory");
    return barrier;
}

// After it: destination, barrier, mask as in the instruction; mask 0: no multicast.
FUNCTION void hopper_pair_end(u64 map, u32 dynamic, u32 destination, u32 barrier, u32 mask) {
    u32 own = private_barrier(dynamic), self = cluster_rank(), bytes = box_bytes(map), done = 0;
    while (!done)
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\n\tselp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(own)
            : "memory");
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(own) : "memory");
    if (mask == 0) mask = 1u << self;
    if (!(mask >> self & 1)) asm volatile("trap;");  // the copies are made from the own CTA
    for (u32 rank = 0; rank < 16; rank++) {
        if (!(mask >> rank & 1)) continue;
        u32 to = at_rank(destination, rank);
        for (u32 at = 0; rank != self && at < bytes; at += 16) {
            uint4 v = load_shared(self, destination + at);
            asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + at), "r"(v.x), "r"(v.y),
                         "r"(v.z), "r"(v.w)
                         : "memory");
        }
        release();
        u32 signalled = at_rank(barrier, (rank & ~1u) | (barrier >> 24 & 1));
        asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(signalled), "r"(bytes)
                     : "memory");
    }
}
