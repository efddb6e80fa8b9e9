// Copies the rows of a detection head's outputs that could score enough to the host, which decodes them as usual
// (edgert/stages/decode/rows.py). A row matters if one of its numbers of each asked kind reaches the floor of that kind,
// relative to a number of the row if its level has one.
//
//   HALF  1: the numbers are float16
//
// The answer of an image is the number of rows that matter in 16 bytes, then their indices through all levels in any
// order, and then the wanted numbers of each row, side by side.

#include "numbers.cuh"

#define SPLIT 4    // threads that share the numbers of a row
#define ROWS 64    // of a block
#define THREADS (ROWS * SPLIT)
#define LEVELS 16
#define FLOORS 2
#define WANTED 4

// The k-th number of row r is at first + r * step + k * apart; a width of 0 means no numbers.
struct Numbers {
    u64 values;
    long long stride;      // numbers per image
    int width, step, apart, first;
};

struct Level {
    Numbers asked[FLOORS], wanted[WANTED], above;
    int rows, before;      // rows of this level, and of those before it
    int block, unused;     // its first
};

struct Job {
    u64 counts, out;       // counts: number of rows that matter and of blocks that are done, for each image
    u64 floors;            // FLOORS numbers of each level, which may change between batches
    int levels, blocks;
    int width;             // numbers that are wanted of a row, at most
    int capacity, pitch;   // rows that an answer holds, bytes of one image's answer
    int unused;
    Level of[LEVELS];
};

__device__ __forceinline__ float number(const Numbers& numbers, int image, int row, int k) {
    const long long at = image * numbers.stride + numbers.first + (long long)row * numbers.step + (long long)k * numbers.apart;
    return widened(((const Stored*)numbers.values)[at]);
}

// The number relative to which the floors of a row count.
__device__ __forceinline__ float base(const Level& level, int image, int row) {
    return level.above.width ? number(level.above, image, row, 0) : 0.0f;
}

// A block works on ROWS rows of one level, and SPLIT threads on the numbers of one row.
extern "C" __global__ void __launch_bounds__(THREADS) rows(const Job job) {
    __shared__ u8 reached[FLOORS][ROWS];
    __shared__ int found[ROWS];
    __shared__ int count, start;
    int which = 0;
    while (which + 1 < job.levels && (int)blockIdx.x >= job.of[which + 1].block) ++which;
    const Level& level = job.of[which];
    const int own = threadIdx.x % ROWS, part = threadIdx.x / ROWS, image = blockIdx.y;
    const int first = (blockIdx.x - level.block) * ROWS, row = first + own;
    if (part == 0)
        for (int f = 0; f < FLOORS; ++f) reached[f][own] = !level.asked[f].width;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (int f = 0; f < FLOORS; ++f) {
        const Numbers& asked = level.asked[f];
        const float floor = ((const float*)job.floors)[which * FLOORS + f];
        // Neighboring threads read neighboring numbers. Several threads may write, but all write the same value.
        if (asked.apart < asked.step) {
#pragma unroll 4
            for (int i = threadIdx.x; i < ROWS * asked.width; i += THREADS) {
                const int one = i / asked.width, k = i - one * asked.width;
                if (first + one < level.rows && number(asked, image, first + one, k) - base(level, image, first + one) >= floor)
                    reached[f][one] = 1;
            }
        } else if (row < level.rows) {
            const float from = base(level, image, row);
            bool is_there = false;
#pragma unroll 10
            for (int k = part; k < asked.width; k += SPLIT) is_there |= number(asked, image, row, k) - from >= floor;
            if (is_there) reached[f][own] = 1;
        }
    }
    __syncthreads();
    bool matters = part == 0 && row < level.rows;
    for (int f = 0; f < FLOORS; ++f) matters = matters && reached[f][own];
    if (matters) found[atomicAdd(&count, 1)] = row;
    __syncthreads();
    int* counts = (int*)job.counts + 2 * image;
    if (threadIdx.x == 0 && count) start = atomicAdd(counts, count);
    __syncthreads();
    char* out = (char*)job.out + (long long)image * job.pitch;
    int* places = (int*)(out + 16);
    float* values = (float*)(places + job.capacity);
    const int fitting = count ? min(count, max(job.capacity - start, 0)) : 0;
    for (int i = threadIdx.x; i < fitting; i += THREADS) places[start + i] = level.before + found[i];
    int column = 0;
    for (int w = 0; w < WANTED; ++w) {
        const Numbers& wanted = level.wanted[w];
        for (int i = threadIdx.x; i < fitting * wanted.width; i += THREADS) {
            const int one = i / wanted.width, k = i % wanted.width;
            values[(long long)(start + one) * job.width + column + k] = number(wanted, image, found[one], k);
        }
        column += wanted.width;
    }
    // The last block to finish writes the number of rows, and resets the counts for the next run.
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(counts + 1, 1) == job.blocks - 1) {
            *(int*)out = atomicAdd(counts, 0);
            counts[0] = counts[1] = 0;
        }
    }
}
