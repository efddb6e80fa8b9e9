// CUDA C for a processor: what the kernels of edgert/stages/gpu use of it. One block runs at a time, its threads as
// contexts that take turns: one that waits for its warp or its block goes on when all of them that still run wait, too.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <csetjmp>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <vector>
using std::floor;
using std::ceil;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(count)
#define __grid_constant__
#define __shared__ static
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Place { int x, y, z; };
enum { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, DONE };
struct Thread { ucontext_t context; jmp_buf place; bool has_begun; Place at; int number, state; std::vector<char> stack; };
#pragma GCC visibility push(hidden)  // each kernel has its own
extern Place threadIdx, blockIdx, gridDim;
extern Thread* running;
extern uint64_t passed_on[64][32];  // by each thread of each warp to the others
void wait_for(int whom);
void run(void (*kernel)(const void*), const void* argument, const int* grid, const int* block);
#pragma GCC visibility pop
static void __syncthreads() { wait_for(WAITS_FOR_BLOCK); }
static void __syncwarp(unsigned = ~0u) { wait_for(WAITS_FOR_WARP); }

// What a thread passes on is read by the others of its warp after all have passed theirs on, and before any does again.
template <class T, class Read> static auto exchanged(T value, Read read) {
    uint64_t* warp = passed_on[running->number / 32];
    std::memcpy(&warp[running->number % 32], &value, sizeof value);
    __syncwarp();
    const auto found = read(warp);
    __syncwarp();
    return found;
}
template <class T> static T __shfl_sync(unsigned, T value, int lane) {
    return exchanged(value, [&](const uint64_t* warp) { T found; std::memcpy(&found, &warp[lane & 31], sizeof found); return found; });
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int lanes) {
    return __shfl_sync(mask, value, running->number % 32 ^ lanes);
}
static unsigned __ballot_sync(unsigned, int is) {
    return exchanged((uint64_t)(is != 0), [](const uint64_t* warp) {
        unsigned found = 0;
        for (int i = 0; i < 32; ++i) found |= (unsigned)warp[i] << i;
        return found;
    });
}
static int __any_sync(unsigned mask, int is) { return __ballot_sync(mask, is) != 0; }

template <class A, class B> static typename std::common_type<A, B>::type min(A a, B b) { return a < b ? a : b; }
template <class A, class B> static typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }
static unsigned atomicOr(unsigned* at, unsigned bits) { unsigned old = *at; *at |= bits; return old; }
template <class T> static T atomicAdd(T* at, T more) { T old = *at; *at += more; return old; }
static void __threadfence() {}
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static float half_to_float(unsigned short bits) {
    const int power = bits >> 10 & 31, rest = bits & 1023;
    const float size = power == 31 ? (rest ? NAN : INFINITY) : std::ldexp(power ? 1024.f + rest : rest, (power ? power : 1) - 25);
    return bits >> 15 ? -size : size;
}
static unsigned short float_to_half(float x) {  // to the nearest, ties to even
    const float size = std::fabs(x);
    const unsigned sign = std::signbit(x) << 15;
    if (!(size < 65520.f)) return sign | (size != size ? 0x7FFF : 0x7C00);
    int power;
    std::frexp(std::max(size, 0x1p-24f), &power);
    const int last = std::max(power, -13) - 11;  // the power of two of its last digit
    return sign | ((last + 24 << 10) + (unsigned)std::nearbyint(std::ldexp(size, -last)));
}
static int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static unsigned __byte_perm(unsigned a, unsigned b, unsigned order) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= (unsigned)(both >> 8 * (order >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
static int __float2int_rn(float x) { return (int)std::lrintf(x); }
static int __float2int_rd(float x) { return (int)std::floor(x); }
static float __fdividef(float a, float b) { return a / b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
static float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static double __ddiv_rn(double a, double b) { return a / b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static long long __double2ll_rn(double x) { return std::llrint(x); }
