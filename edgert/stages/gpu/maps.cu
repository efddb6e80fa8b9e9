// Decodes maps over the image: the class of every cell, and the peaks of heat maps.
//
// The results are those of edgert/stages/decode/maps.py: the first of equal scores, and VOID where a score is not a
// number.
//
//   HALF     1: scores are float16
//   INTEGER  bytes of an integer if the map holds classes already; else 0
//   CELLS    cells per thread: 4 if the scores of a class are adjacent and their number is a multiple of 4, else 1

#include "numbers.cuh"

#define THREADS 256
#define VOID 255

struct Maps {
    u64 values, out;
    u64 threshold;            // address of a number that may change between batches
    long long stride;         // numbers per image
    int classes, cells;
    int per_class, per_cell;  // numbers from one to the next
    int width;                // of a heat map
    int pitch;                // bytes of one image's answer
};

#if INTEGER == 8
typedef long long Number;
#elif INTEGER == 4
typedef int Number;
#else
typedef Stored Number;
#endif

struct alignas(CELLS * sizeof(Number)) Several { Number number[CELLS]; };
struct alignas(CELLS) Codes { u8 code[CELLS]; };

__device__ __forceinline__ Several several(const Maps& maps, int cell, int kind) {
    const Number* image = (const Number*)maps.values + blockIdx.y * maps.stride;
    return *(const Several*)(image + (long long)kind * maps.per_class + (long long)cell * maps.per_cell);
}

__device__ __forceinline__ int cell_of_thread() { return (blockIdx.x * THREADS + threadIdx.x) * CELLS; }

__device__ __forceinline__ void store(const Maps& maps, int cell, const Codes& codes) {
    *(Codes*)((u8*)maps.out + (long long)blockIdx.y * maps.pitch + cell) = codes;
}

#if INTEGER
extern "C" __global__ void __launch_bounds__(THREADS) narrow(const Maps maps) {
    const int cell = cell_of_thread();
    if (cell >= maps.cells) return;
    const Several found = several(maps, cell, 0);
    Codes codes;
    for (int i = 0; i < CELLS; ++i) codes.code[i] = (u8)found.number[i];
    store(maps, cell, codes);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) best_class(const Maps maps) {
    const int cell = cell_of_thread();
    if (cell >= maps.cells) return;
    float best[CELLS];
    Codes codes;
    bool is_void[CELLS];
    const Several first = several(maps, cell, 0);
    for (int i = 0; i < CELLS; ++i) {
        best[i] = widened(first.number[i]);
        codes.code[i] = 0, is_void[i] = best[i] != best[i];
    }
#pragma unroll 4
    for (int kind = 1; kind < maps.classes; ++kind) {
        const Several next = several(maps, cell, kind);
        for (int i = 0; i < CELLS; ++i) {
            const float number = widened(next.number[i]);
            if (number > best[i]) best[i] = number, codes.code[i] = (u8)kind;
            is_void[i] = is_void[i] || number != number;
        }
    }
    for (int i = 0; i < CELLS; ++i) if (is_void[i]) codes.code[i] = VOID;
    store(maps, cell, codes);
}

extern "C" __global__ void __launch_bounds__(THREADS) reaches(const Maps maps) {
    const int cell = cell_of_thread();
    if (cell >= maps.cells) return;
    const float threshold = *(const float*)maps.threshold;
    const Several found = several(maps, cell, 0);
    Codes codes;
    for (int i = 0; i < CELLS; ++i) codes.code[i] = widened(found.number[i]) >= threshold;
    store(maps, cell, codes);
}

struct Peak { int cell; float around[9]; float value; int unused; };

// Finds the peak of a map, the first of equals, and the nine cells around it or around the nearest inner cell. A block
// works on one map.
extern "C" __global__ void __launch_bounds__(THREADS) peaks(const Maps maps) {
    __shared__ u64 found[THREADS];
    const Stored* map = (const Stored*)maps.values + blockIdx.y * maps.stride + (long long)blockIdx.x * maps.cells;
    u64 best = ~0ull;
    for (int cell = threadIdx.x; cell < maps.cells; cell += THREADS) {
        const float number = widened(map[cell]);
        best = min(best, number == number ? falling_key(number, cell) : (u64)cell);  // as NumPy's argmax has it
    }
    found[threadIdx.x] = best;
    for (int apart = THREADS / 2; apart > 0; apart /= 2) {
        __syncthreads();
        if (threadIdx.x < apart) found[threadIdx.x] = min(found[threadIdx.x], found[threadIdx.x + apart]);
    }
    __syncthreads();
    const int cell = (int)(u32)found[0], height = maps.cells / maps.width;
    const int y = min(max(cell / maps.width, 1), height - 2), x = min(max(cell % maps.width, 1), maps.width - 2);
    Peak& out = ((Peak*)((u8*)maps.out + (long long)blockIdx.y * maps.pitch))[blockIdx.x];
    const int thread = threadIdx.x;
    if (thread < 9) out.around[thread] = widened(map[(y + thread / 3 - 1) * maps.width + x + thread % 3 - 1]);
    if (thread == 9) out.cell = cell, out.value = widened(map[cell]);
}
#endif
