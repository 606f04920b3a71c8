// tcgen05.mma, kinds mxf4 and mxf4nvf4, carried out by the issuing thread (PTX ISA 9.7.16.10).

#define PASS 4   // columns of D computed together: their rows of B stay in registers
#define BATCH 8  // rows of D read together, so that the reads overlap

struct Fp4 {
    u32 d, sfa, sfb, group, block32, ue8m0, id_a, id_b, accumulate, a_in_tmem;
    bool negate;
    int n;
    u64 a, b;
};

INLINE void words_of(uint4 v, u32* words) { words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w; }

// The rows of B after columns [n, n + PASS) of D. A pair has the first half of the rows in its even CTA; both have
// the scales of all rows. cells: tensor memory of the CTA whose rows of D are computed.
INLINE void load_columns(const Fp4& op, ColumnB* columns, u32 first_rank, u32* cells, int n) {
    int per_cta = op.n / op.group;
#pragma unroll
    for (int j = 0; j < PASS; j++) {
        int row = n + j;
        u32 rank = first_rank + row / per_cta, words[8];
        words_of(operand(rank, op.b, row % per_cta, 0), words);
        words_of(operand(rank, op.b, row % per_cta, 1), words + 4);
        u32 codes = codes_of(load_cell(cell(cells, row % 32, op.sfb + row / 32)), op.id_b, op.block32);
        unpack_column(columns + j, words, codes, op.ue8m0, op.negate);
    }
}

INLINE void load_row(const Fp4& op, u32* words, u32 rank, u32* cells, u32 m) {
    if (op.a_in_tmem) {
        for (u32 w = 0; w < 8; w++) words[w] = load_cell(cell(cells, m, (u32)(op.a & 0xFFFF) + w));
    } else {
        words_of(operand(rank, op.a, m, 0), words);
        words_of(operand(rank, op.a, m, 1), words + 4);
    }
}

// Rows [m0, m0 + BATCH) of columns [n, n + PASS) of D in one CTA.
INLINE void multiply_block(const Fp4& op, const ColumnB* columns, u32 rank, u32* cells, int n, u32 m0) {
    u32 c[BATCH][PASS], codes[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        codes[i] = load_cell(cell(cells, (m0 + i) % 32, op.sfa + (m0 + i) / 32));
#pragma unroll
        for (int j = 0; j < PASS; j++) c[i][j] = op.accumulate ? load_cell(cell(cells, m0 + i, op.d + n + j)) : 0;
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        u32 words[8];
        RowA row;
        load_row(op, words, rank, cells, m0 + i);
        unpack_row(&row, words, codes_of(codes[i], op.id_a, op.block32), op.ue8m0);
#pragma unroll
        for (int j = 0; j < PASS; j++) store_cell(cell(cells, m0 + i, op.d + n + j), multiply(row, columns[j], c[i][j]));
    }
}

// One K = 64 step: M = 128 in the CTA, or 256 in the pair.
// flags: 1 accumulate, 2 cta_group::2, 4 block32, 8 A in tensor memory.
FUNCTION void hopper_mma_fp4(u32 d, u64 a, u64 b, u32 idesc, u32 sfa, u32 sfb, u32 flags) {
    Fp4 op;
    op.d = d & 0xFFFF, op.a = a, op.b = b, op.sfa = sfa & 0xFFFF, op.sfb = sfb & 0xFFFF;
    op.accumulate = flags & 1, op.group = flags & 2 ? 2 : 1, op.block32 = flags >> 2 & 1, op.a_in_tmem = flags >> 3 & 1;
    op.ue8m0 = idesc >> 23 & 1, op.id_b = idesc >> 4 & 3, op.id_a = idesc >> 29 & 3;
    op.negate = (idesc >> 13 ^ idesc >> 14) & 1;
    op.n = (idesc >> 17 & 63) * 8;
    u32 m = (idesc >> 24 & 31) * 16;
    if (m != 128 * op.group || op.n > 256 || d >> 16) asm volatile("trap;");
    u32 self = cluster_rank(), first = op.group == 2 ? self & ~1u : self;
    for (u32 rank = first; rank < first + op.group; rank++) {
        u32* cells = cells_of(rank);
#pragma unroll 1
        for (int n = 0; n < op.n; n += PASS) {
            ColumnB columns[PASS];
            load_columns(op, columns, first, cells, n);
#pragma unroll 1
            for (u32 m0 = 0; m0 < LANES; m0 += BATCH) multiply_block(op, columns, rank, cells, n, m0);
        }
    }
}
