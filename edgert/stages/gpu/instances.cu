// Masks of the boxes that suppression left: sums of prototypes, a bit for every cell, set where the sum is above 0.
//
// PARTS blocks for each box, since what takes long is to wait for prototypes. Only rows of cells that the box may touch are
// written, those of a block as one piece: short writes to the host's memory take longer than sums. The host cuts them to
// the box.
//
//   HALF  1: prototypes are float16

#include "numbers.cuh"

#define THREADS 256
#define MOST 256        // prototypes
#define PARTS 4
#define MOST_WORDS 2048 // of 32 cells, of a block

struct Job {
    u64 boxes, maps, out;     // what suppress left, in memory of the GPU
    long long stride;         // numbers of all prototypes of an image
    int limit, masks;
    int width, height;        // of a prototype
    int boxes_pitch, pitch;   // bytes of one image
    float across, down;       // cells per network pixel
};

struct alignas(16) Box { float left, top, right, bottom; };

// One cell more on every side than a box touches: how it is rounded is the host's business.
__device__ __forceinline__ int cell_at(float place, float scale, int offset, int most) {
    return (int)fminf(fmaxf(floorf(place * scale) + offset, 0.0f), (float)most);
}

extern "C" __global__ void __launch_bounds__(THREADS) instances(const Job job) {
    __shared__ float shares[MOST];
    __shared__ u32 bits[MOST_WORDS];
    const int one = blockIdx.x, image = blockIdx.y, part = blockIdx.z, lane = threadIdx.x % 32;
    const char* found = (const char*)job.boxes + (long long)image * job.boxes_pitch;
    char* out = (char*)job.out + (long long)image * job.pitch;
    const int count = *(const int*)found;
    if (one == 0 && part == 0 && threadIdx.x == 0) *(int*)out = count;
    if (one >= count) return;
    const Box* boxes = (const Box*)(found + 16);
    const u32* numbers = (const u32*)(boxes + job.limit);  // scores, classes, shares of prototypes
    for (int i = threadIdx.x; i < job.masks; i += THREADS)
        shares[i] = ((const float*)numbers)[2 * job.limit + one * job.masks + i];
    const Box box = boxes[one];
    u32* answer = (u32*)(out + 16 + job.limit * sizeof(Box));
    if (part == 0 && threadIdx.x == 0) ((Box*)(out + 16))[one] = box;
    if (part == 0 && threadIdx.x < 2) answer[threadIdx.x * job.limit + one] = numbers[threadIdx.x * job.limit + one];
    __syncthreads();
    const int words = (job.width + 31) / 32, cells = job.width * job.height;
    u32* mask = answer + 2 * job.limit + (long long)one * job.height * words;
    const Stored* maps = (const Stored*)job.maps + image * job.stride;
    const int left = cell_at(fminf(box.left, box.right), job.across, -1, job.width - 1) / 32;
    const int right = cell_at(fmaxf(box.left, box.right), job.across, 1, job.width - 1) / 32;
    const int first = cell_at(fminf(box.top, box.bottom), job.down, -1, job.height - 1);
    const int last = cell_at(fmaxf(box.top, box.bottom), job.down, 1, job.height - 1);
    const int each = (last - first + PARTS) / PARTS, top = first + part * each, rows = min(each, last + 1 - top);
    const int wide = right - left + 1, all = wide * rows;
    for (int word = threadIdx.x / 32; word < all; word += THREADS / 32) {
        const int y = top + word / wide, at = left + word % wide, x = 32 * at + lane;
        const Stored* cell = maps + (long long)y * job.width + min(x, job.width - 1);
        float sum = 0;
#pragma unroll 16
        for (int i = 0; i < job.masks; ++i) sum += shares[i] * widened(cell[(long long)i * cells]);
        const u32 found_bits = __ballot_sync(~0u, x < job.width && sum > 0);
        if (lane == 0) bits[(y - top) * words + at] = found_bits;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * words; i += THREADS) mask[top * words + i] = bits[i];
}
