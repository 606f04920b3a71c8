// Ordinary loads of n times 16 bytes, eight of a thread at a time: what DRAM gives a launch of this size.

extern "C" __global__ void read_only(const uint4* data, unsigned long long n, unsigned* out) {
    unsigned sum = 0;
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(data + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step) sum += data[i].x;
    if (sum == 0x12345678) out[0] = sum;  // so that the loads are not dropped
}
