// Arithmetic of one output element of tcgen05.mma, kinds mxf4 and mxf4nvf4 (K = 64), in integers.
//
// C plus the sum of four terms, each the exact dot product of 16 elements times its two scales. The terms are aligned
// to the largest of the five exponents, cut off towards zero 35 bits below it, summed exactly, and the sum is cut off
// to fp32: the model of arXiv 2511.10909, as in b200/chip/tensor/fused_sum.py. A scale is significand (3 fraction bits)
// and exponent; e2m1 doubled is an int8, so four dp4a make a dot product, in quarters.
//
// Plain C++ but for a few intrinsics, so that a host compiler can check it too (tests/hopper/test_hopper_arithmetic.py).

#define FRACTION_BITS 35
#define TERM_BITS 8  // fraction bits of quarters times two significands
#define ZERO_EXPONENT -126
#define NAN_F32 0x7FFFFFFFu
#define BIAS 12  // makes doubled e2m1 values unsigned: 0 .. 24

// prmt: four bytes of y:x, by the low three bits of each nibble of s; bit 3 replicates the byte's sign instead. (The
// intrinsic __byte_perm ignores bit 3.)
#ifdef __CUDACC__
INLINE u32 permute(u32 x, u32 y, u32 s) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(s));
    return r;
}
#endif

// Four doubled e2m1 codes (16 bits) as bytes, each plus BIAS: one of two tables, by bit 3 of a code.
INLINE u32 biased_bytes(u32 codes) {
    u32 magnitude = codes & 0x7777;
    u32 plus = permute(0x0F0E0D0C, 0x18141210, magnitude);
    u32 minus = permute(0x090A0B0C, 0x00040608, magnitude);
    u32 sign = permute(0x80808080, 0x80808080, codes);  // 0xFF where the code is negative, else 0x80
    return (plus & ~sign) | (minus & sign);
}

INLINE u32 signed_bytes(u32 codes) { return __vsub4(biased_bytes(codes), 0x01010101 * BIAS); }

// The eight codes of a word as two words of bytes.
INLINE void unpack_biased(u32 word, u32* out) {
    out[0] = biased_bytes(word & 0xFFFF);
    out[1] = biased_bytes(word >> 16);
}

INLINE void unpack_signed(u32 word, u32* out) {
    out[0] = signed_bytes(word & 0xFFFF);
    out[1] = signed_bytes(word >> 16);
}

struct Scale {
    int significand, exponent;
};

// A scale factor, ue4m3 or ue8m0; not for NaN.
INLINE Scale scale_of(u32 code, u32 ue8m0) {
    Scale s;
    if (ue8m0) {
        s.significand = 8, s.exponent = (int)code - 127;
    } else {
        int e = code >> 3 & 15, m = code & 7;
        s.significand = e ? 8 + m : m;
        s.exponent = s.significand ? max(e, 1) - 7 : ZERO_EXPONENT;
    }
    return s;
}

INLINE bool scale_is_nan(u32 code, u32 ue8m0) { return ue8m0 ? code == 0xFF : (code & 0x7F) == 0x7F; }

// The four codes that a K-step uses, one for each 16 elements, from a cell of tensor memory.
INLINE u32 codes_of(u32 word, u32 id, u32 block32) {
    if (!block32) return word;
    u32 two = word >> 8 * id & 0xFFFF;
    return (two & 0xFF) * 0x0101 | (two >> 8) * 0x01010000;
}

// x * 2^left, cut off towards zero.
INLINE long long shifted(int x, int left) {
    if (left >= 0) return (long long)((u64)(long long)x << left);
    int magnitude = abs(x) >> min(-left, 31);
    return x < 0 ? -magnitude : magnitude;
}

// Four terms and C to fp32. terms: integers, units of 2^(exponent - TERM_BITS); c: bits of fp32.
INLINE u32 fused_sum(const int* terms, const int* exponents, u32 c) {
    int field = c >> 23 & 0xFF, significand = c & 0x7FFFFF;
    if (field == 0xFF) return significand ? NAN_F32 : c;
    if (field) significand |= 0x800000;
    int ec = significand ? max(field, 1) - 127 : ZERO_EXPONENT;
    if (c >> 31) significand = -significand;
    int top = ec;
    for (int g = 0; g < 4; g++) top = max(top, exponents[g]);
    long long sum = shifted(significand, ec - top + FRACTION_BITS - 23);
    for (int g = 0; g < 4; g++) sum += shifted(terms[g], exponents[g] - top + FRACTION_BITS - TERM_BITS);
    if (sum == 0) return 0;
    // Below 2^53, so exact in double; the power of two is normal.
    double x = (double)sum * __longlong_as_double((long long)(top - FRACTION_BITS + 1023) << 52);
    if (fabs(x) >= 3.402823669209384634633746e38) return x < 0 ? 0xFF800000u : 0x7F800000u;  // 2^128
    u32 bits = __float_as_uint(__double2float_rz(x));
    return bits == 0x80000000u ? 0 : bits;
}

// Scales and codes of 64 elements of a row of A, unpacked once for several columns.
struct RowA {
    u32 bytes[16];
    Scale scale[4];
    bool nan;
};

INLINE void unpack_row(RowA* row, const u32* words, u32 codes, u32 ue8m0) {
#pragma unroll
    for (int w = 0; w < 8; w++) unpack_biased(words[w], row->bytes + 2 * w);
    row->nan = false;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        row->scale[g] = scale_of(codes >> 8 * g & 0xFF, ue8m0);
        row->nan |= scale_is_nan(codes >> 8 * g & 0xFF, ue8m0);
    }
}

// The same of a row of B (a column of D). bias: what the BIAS of A adds to a dot product, negated.
struct ColumnB {
    u32 bytes[16];
    int bias[4];
    Scale scale[4];
    bool nan;
};

INLINE void unpack_column(ColumnB* column, const u32* words, u32 codes, u32 ue8m0, bool negate) {
#pragma unroll
    for (int w = 0; w < 8; w++) unpack_signed(words[w], column->bytes + 2 * w);
    column->nan = false;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        int total = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) total = __dp4a((int)column->bytes[4 * g + w], 0x01010101, total);
        column->bias[g] = -BIAS * total;
        column->scale[g] = scale_of(codes >> 8 * g & 0xFF, ue8m0);
        if (negate) column->scale[g].significand = -column->scale[g].significand;
        column->nan |= scale_is_nan(codes >> 8 * g & 0xFF, ue8m0);
    }
}

// D = A * B + C of one element; c, result: bits of fp32.
INLINE u32 multiply(const RowA& row, const ColumnB& column, u32 c) {
    int terms[4], exponents[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        int p = column.bias[g];
#pragma unroll
        for (int w = 0; w < 4; w++) p = __dp4a((int)row.bytes[4 * g + w], (int)column.bytes[4 * g + w], p);
        terms[g] = p * (row.scale[g].significand * column.scale[g].significand);
        exponents[g] = row.scale[g].exponent + column.scale[g].exponent;
    }
    return row.nan || column.nan ? NAN_F32 : fused_sum(terms, exponents, c);
}
