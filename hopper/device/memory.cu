// tcgen05.alloc, dealloc, ld, st, cp.

// ---- allocation ----------------------------------------------------------------------------------------------------

// tcgen05.alloc by a whole warp: first fit, waits until there is room, writes the address to shared memory.
FUNCTION void hopper_alloc(u32 shared, u32 columns) {
    if (lane_id() == 0) {
        u32* bitmap = (u32*)hopper_bitmaps + slot_of(cluster_rank());
        u32 units = columns / 32, want = (1u << units) - 1, at = 0;
        if (columns < 32 || columns > COLUMNS || (columns & (columns - 1))) asm volatile("trap;");
        for (bool done = false; !done;) {
            u32 used = atomicOr(bitmap, 0);
            for (at = 0; at + units <= COLUMNS / 32 && (used >> at & want); at++) {
            }
            done = at + units <= COLUMNS / 32 && atomicCAS(bitmap, used, used | want << at) == used;
        }
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(at * 32) : "memory");
    }
    __syncwarp();
}

FUNCTION void hopper_dealloc(u32 taddr, u32 columns) {
    __syncwarp();
    if (lane_id() == 0) {
        u32* bitmap = (u32*)hopper_bitmaps + slot_of(cluster_rank());
        atomicAnd(bitmap, ~(((1u << columns / 32) - 1) << (taddr & 0xFFFF) / 32));
    }
}

// ---- loads and stores ----------------------------------------------------------------------------------------------

// Address of the cell of register 0 of this thread, for tcgen05.ld and st (thread maps: PTX ISA 9.7.16.2.3).
// shape: 0 = 32x32b, 1 = 16x64b, 2 = 16x128b, 3 = 16x256b, 4 = 16x32bx2 (`split` columns to the second half).
// packed: register pairs of columns, so column numbers count twice.
FUNCTION u64 hopper_lane(u32 taddr, u32 shape, u32 split, u32 packed) {
    u32 t = lane_id(), lane = taddr >> 16, column = 0;
    if (lane / 32 != warp_index() % 4) asm volatile("trap;");  // a warp reaches its own quarter of the lanes only
    if (shape == 0) lane += t;
    if (shape == 1) lane += 8 * (t % 2) + t / 4, column = t / 2 % 2;
    if (shape == 2) lane += t / 4, column = t % 4;
    if (shape == 3) lane += t / 4, column = 2 * (t % 4);
    if (shape == 4) lane += t % 16, column = t < 16 ? 0 : split;
    column = (taddr & 0xFFFF) + (packed && shape != 4 ? 2 * column : column);
    return (u64)cell(cells_of(cluster_rank()), lane, column);
}

// ---- copies from shared memory -------------------------------------------------------------------------------------

INLINE void put_chunk(u32* cells, u32 lane, u32 column, uint4 v) {
    u32* p = cell(cells, lane, column);
    store_cell(p, v.x), store_cell(p + 1, v.y), store_cell(p + 2, v.z), store_cell(p + 3, v.w);
}

// tcgen05.cp by one thread, in its own CTA or in both of its pair.
// shape: 0 = 128x256b, 1 = 128x128b, 2 = 64x128b.warpx2::02_13, 3 = 64x128b.warpx2::01_23, 4 = 32x128b.warpx4, 5 = 4x256b
FUNCTION void hopper_cp(u32 taddr, u64 descriptor, u32 shape, u32 group) {
    u32 self = cluster_rank(), first = group == 2 ? self & ~1u : self;
    u32 rows = shape < 2 ? 128 : shape < 4 ? 64 : shape == 4 ? 32 : 4;
    u32 chunks = shape == 0 || shape == 5 ? 2 : 1;
    u32 base = taddr >> 16, column = taddr & 0xFFFF;
    for (u32 rank = first; rank < first + group; rank++) {
        u32* cells = cells_of(rank);
        for (u32 r = 0; r < rows; r++)
            for (u32 c = 0; c < chunks; c++) {
                uint4 v = operand(rank, descriptor, r, c);
                u32 at = column + 4 * c;
                if (shape < 2) put_chunk(cells, base + r, at, v);
                if (shape == 2) put_chunk(cells, r, at, v), put_chunk(cells, r + 64, at, v);
                if (shape == 3) {
                    u32 lane = r + (r & 32);
                    put_chunk(cells, lane, at, v), put_chunk(cells, lane + 32, at, v);
                }
                if (shape == 4)
                    for (u32 q = 0; q < 4; q++) put_chunk(cells, r + 32 * q, at, v);
                if (shape == 5) put_chunk(cells, base % 32 + 32 * r, at, v);
            }
    }
}
