// Numbers of an engine's output, and integer keys that sort in the order of these numbers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// HALF  1: the numbers are float16
#if HALF
typedef u16 Stored;
#else
typedef float Stored;
#endif

__device__ __forceinline__ float widened(Stored stored) {
#if HALF
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(stored));
    return wide;
#else
    return stored;
#endif
}

// Bits that rise with the number; equal numbers, such as -0 and 0, have equal bits.
__device__ __forceinline__ u32 rising_bits(float number) {
    const u32 bits = __float_as_uint(__fadd_rn(number, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A key that falls with the number, so that the greatest number has the smallest key; of equal numbers, the first.
__device__ __forceinline__ u64 falling_key(float number, u32 place) { return (u64)~rising_bits(number) << 32 | place; }

__device__ __forceinline__ float number_of(u64 key) {
    const u32 rising = ~(u32)(key >> 32);
    return __uint_as_float(rising >> 31 ? rising & 0x7fffffffu : ~rising);
}

// Sorts the keys of a warp's threads so that they rise along its lanes.
__device__ __forceinline__ u64 sorted(u64 key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int apart = size / 2; apart > 0; apart /= 2) {
            const u64 other = __shfl_xor_sync(~0u, key, apart);
            key = !(lane & apart) == !(lane & size) ? min(key, other) : max(key, other);
        }
    return key;
}
