// CUDA C for a processor: what the kernels of edgert/stages/gpu use of it. One block runs at a time, its threads as
// contexts that take turns at __syncthreads().
#include <algorithm>
#include <cmath>
#include <cstdint>
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

struct Place { int x, y, z; };
static Place threadIdx, blockIdx;

struct Thread { ucontext_t context; Place at; bool is_done; std::vector<char> stack; };
static ucontext_t turns;
static Thread* running;
static const void* given;
static void (*chosen)(const void*);

static void __syncthreads() { swapcontext(&running->context, &turns); }
static void start() { chosen(given); running->is_done = true; }

static void run(void (*kernel)(const void*), const void* argument, const int* grid, const int* block) {
    static std::vector<Thread> threads;
    chosen = kernel, given = argument;
    threads.resize(block[0] * block[1]);
    for (int z = 0; z < grid[2]; ++z) for (int y = 0; y < grid[1]; ++y) for (int x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        for (int i = 0; i < (int)threads.size(); ++i) {
            Thread& one = threads[i];
            one.at = {i % block[0], i / block[0], 0}, one.is_done = false, one.stack.resize(1 << 15);
            getcontext(&one.context);
            one.context.uc_stack.ss_sp = one.stack.data(), one.context.uc_stack.ss_size = one.stack.size();
            one.context.uc_link = &turns;
            makecontext(&one.context, start, 0);
        }
        for (bool is_left = true; is_left;) {
            is_left = false;
            for (Thread& one : threads) {
                if (one.is_done) continue;
                running = &one, threadIdx = one.at;
                swapcontext(&turns, &one.context);
                is_left = is_left || !one.is_done;
            }
        }
    }
}

template <class A, class B> static typename std::common_type<A, B>::type min(A a, B b) { return a < b ? a : b; }
template <class A, class B> static typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }
static unsigned atomicOr(unsigned* at, unsigned bits) { unsigned old = *at; *at |= bits; return old; }
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
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static double __ddiv_rn(double a, double b) { return a / b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static long long __double2ll_rn(double x) { return std::llrint(x); }
