// Finds the best classes of every row of a batch, with their probabilities, in one launch; only they go to the host.
//
// A block processes EACH classes of a row. If a row takes several blocks, the last one to finish merges the results of
// all. The result is that of edgert/stages/decode/classify.py, with sums in another order.
//
//   HALF  1: the numbers are float16

#include "numbers.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define EACH 4096
#define AHEAD 4         // numbers that a thread loads at a time
#define NONE ~0ull
#define TOLERANCE 0.02f // as in classify.py
#define INFINITE __uint_as_float(0x7f800000u)

enum { AUTO, SOFTMAX, LOGITS };

struct Part { float least, most, sum, power; };  // power: of exp(number - most)

struct Job {
    u64 values, parts, best, done, out;  // parts of a row, the best 32 of each, and the number of finished parts
    u64 top;                             // address of the number of wanted classes, which may change between batches
    long long stride;                    // numbers per row
    int classes, room, manner;           // room: classes that an answer holds
    int pitch;                           // bytes of one row's answer: its count in 16, then scores, then classes
};

// Returns the 32 smallest keys of two lists that rise along the lanes, rising.
__device__ __forceinline__ u64 merged(u64 key, u64 with) {
    const int lane = threadIdx.x % 32;
    key = min(key, __shfl_sync(~0u, with, 31 - lane));
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        const u64 other = __shfl_xor_sync(~0u, key, apart);
        key = lane & apart ? max(key, other) : min(key, other);
    }
    return key;
}

// The number subtracted before exp: the greatest one, if there is any.
__device__ __forceinline__ float pivot(float most) { return most == -INFINITE ? 0.0f : most; }

__device__ __forceinline__ Part joined(const Part& a, const Part& b) {
    const float most = fmaxf(a.most, b.most);
    const float first = a.power == 0 ? 0 : a.power * expf(pivot(a.most) - pivot(most));
    const float second = b.power == 0 ? 0 : b.power * expf(pivot(b.most) - pivot(most));
    return {fminf(a.least, b.least), most, a.sum + b.sum, first + second};
}

__device__ __forceinline__ float summed(float number) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) number += __shfl_xor_sync(~0u, number, apart);
    return number;
}

// Writes the answer. Called by one warp, of which each lane has one of the best classes.
__device__ __forceinline__ void answer(const Job& job, int row, int top, const Part& whole, u64 best) {
    const int lane = threadIdx.x;
    const bool is_single = job.classes == 1;  // a probability, or what a sigmoid makes one
    const bool is_one = whole.least >= 0 && (is_single ? whole.most <= 1 : fabsf(whole.sum - 1) <= TOLERANCE);
    const float number = number_of(best);
    const bool is_final = job.manner == SOFTMAX || (job.manner == AUTO && is_one);
    const float power = is_single ? 1 : expf(number - pivot(whole.most));
    const float score = is_final ? number : __fdiv_rn(power, is_single ? 1 + expf(-number) : whole.power);
    const bool is_there = lane < top && best != NONE && score == score;
    char* out = (char*)job.out + (long long)row * job.pitch;
    if (is_there) ((float*)(out + 16))[lane] = score, ((int*)(out + 16))[job.room + lane] = (int)best;
    const u32 all = __ballot_sync(~0u, is_there);
    if (lane == 0) *(int*)out = __popc(all);
}

// Merges the lists of all warps in shared memory, for the first warp.
__device__ __forceinline__ u64 merged_all(u64 (*lists)[32], u64 best) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int apart = WARPS / 2; apart > 0; apart /= 2) {
        if (warp < apart) lists[warp][lane] = best = merged(best, lists[warp + apart][lane]);
        __syncthreads();
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) classes(const Job job) {
    __shared__ int ticket;
    __shared__ u64 lists[WARPS][32];
    __shared__ Part warps[WARPS];
    __shared__ float powers[WARPS];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, row = blockIdx.y;
    const int top = *(const int*)job.top;
    const int first = blockIdx.x * EACH, end = min(first + EACH, job.classes);
    const Stored* values = (const Stored*)job.values + row * job.stride;

    Part mine = {INFINITE, -INFINITE, 0, 0};
    u64 best = NONE, bar = NONE;
    for (int base = first; base < end; base += AHEAD * THREADS) {
        float numbers[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) numbers[k] = widened(values[min(base + k * THREADS + thread, end - 1)]);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            if (base + k * THREADS >= end) break;
            const int at = base + k * THREADS + thread;
            const float number = numbers[k];
            if (at < end) {
                mine.least = fminf(mine.least, number), mine.most = fmaxf(mine.most, number);
                mine.sum += number;
            }
            const u64 key = at < end && number == number ? falling_key(number, at) : NONE;
            if (!__any_sync(~0u, key < bar)) continue;
            best = merged(best, sorted(key));
            bar = __shfl_sync(~0u, best, top - 1);
        }
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        mine.least = fminf(mine.least, __shfl_xor_sync(~0u, mine.least, apart));
        mine.most = fmaxf(mine.most, __shfl_xor_sync(~0u, mine.most, apart));
    }
    mine.sum = summed(mine.sum);
    if (lane == 0) warps[warp] = mine;
    lists[warp][lane] = best;
    __syncthreads();
    Part whole = warps[0];
    for (int i = 1; i < WARPS; ++i) {
        whole.least = fminf(whole.least, warps[i].least), whole.most = fmaxf(whole.most, warps[i].most);
        whole.sum += warps[i].sum;
    }
    if (job.manner != SOFTMAX) {
        float power = 0;
        for (int at = first + thread; at < end; at += THREADS) power += expf(widened(values[at]) - pivot(whole.most));
        power = summed(power);
        if (lane == 0) powers[warp] = power;
    }
    best = merged_all(lists, best);
    if (warp == 0)
        for (int i = 0; i < WARPS && job.manner != SOFTMAX; ++i) whole.power += powers[i];
    const int count = gridDim.x;
    if (count > 1) {
        Part* parts = (Part*)job.parts + row * count;
        u64* found = (u64*)job.best + (long long)row * count * 32;
        if (warp == 0) {
            if (lane == 0) parts[blockIdx.x] = whole;
            found[blockIdx.x * 32 + lane] = best;
            __threadfence();
            __syncwarp();
            if (lane == 0) ticket = atomicAdd((int*)job.done + row, 1);
        }
        __syncthreads();
        if (ticket < count - 1) return;
        __threadfence();
        if (thread == 0) ((int*)job.done)[row] = 0;
        best = NONE;
        whole = {INFINITE, -INFINITE, 0, 0};
        for (int i = warp; i < count; i += WARPS) {
            const volatile float* other = (const volatile float*)(parts + i);
            whole = joined(whole, {other[0], other[1], other[2], other[3]});
            best = merged(best, *(const volatile u64*)(found + i * 32 + lane));
        }
        if (lane == 0) warps[warp] = whole;
        lists[warp][lane] = best;
        __syncthreads();
        best = merged_all(lists, best);
        if (warp == 0)
            for (int i = 1; i < WARPS; ++i) whole = joined(whole, warps[i]);
    }
    if (warp == 0) answer(job, row, top, whole, best);
}
