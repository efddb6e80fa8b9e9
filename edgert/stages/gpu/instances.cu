// Makes masks of the boxes that suppression kept: a bit for every pixel of the network, set where the weighted sum of
// prototypes, interpolated linearly between the middles of their cells, is above 0.
//
// A box has PARTS blocks, as most time is spent on waiting for prototypes. A block works on strips of pixel rows: first
// the sums of the cells that a strip needs, then its bits. Only rows that the box may touch are written, and a strip as
// one piece, as short writes to host memory take longer than the sums. The host cuts them to the box.
//
//   HALF  1: prototypes are float16

#include "numbers.cuh"

#define THREADS 256
#define MOST 256        // prototypes
#define PARTS 4
#define TILE 4096       // sums of a strip
#define MOST_WORDS 2048 // of 32 pixels, of a strip

struct Job {
    u64 boxes, maps, out;     // boxes: result of the kernel suppress, in GPU memory
    long long stride;         // numbers of all prototypes of an image
    int limit, masks;
    int width, height;        // of a prototype
    int across, down;         // pixels of a cell
    int boxes_pitch, pitch;   // bytes of one image
};

struct alignas(16) Box { float left, top, right, bottom; };

// A pixel beyond the box on every side, as the host rounds its sides.
__device__ __forceinline__ int pixel_at(float place, int offset, int most) {
    return (int)fminf(fmaxf(floorf(place) + offset, 0.0f), (float)most);
}

// The two cells between whose middles a pixel is, and the weight of the second. At the edge they are the same cell.
struct Between { int low, high; float part; };

__device__ __forceinline__ Between between(int pixel, int pitch, int most) {
    const int twice = 2 * pixel + 1 + pitch, low = twice / (2 * pitch) - 1;
    return {max(low, 0), min(low + 1, most), (float)(twice % (2 * pitch)) / (float)(2 * pitch)};
}

extern "C" __global__ void __launch_bounds__(THREADS) instances(const Job job) {
    __shared__ float shares[MOST];
    __shared__ float sums[TILE];
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
    const int columns = job.width * job.across, rows = job.height * job.down;
    const int words = (columns + 31) / 32, cells = job.width * job.height;
    u32* mask = answer + 2 * job.limit + (long long)one * rows * words;
    const Stored* maps = (const Stored*)job.maps + image * job.stride;
    const int left = pixel_at(fminf(box.left, box.right), -1, columns - 1) / 32;
    const int right = pixel_at(fmaxf(box.left, box.right), 1, columns - 1) / 32;
    const int first = pixel_at(fminf(box.top, box.bottom), -1, rows - 1);
    const int last = pixel_at(fmaxf(box.top, box.bottom), 1, rows - 1);
    const int each = (last - first + PARTS) / PARTS, top = first + part * each, end = min(top + each, last + 1);
    const int from = between(32 * left, job.across, job.width - 1).low;
    const int wide = between(min(32 * right + 31, columns - 1), job.across, job.width - 1).high - from + 1;
    const int most = min((TILE / wide - 2) * job.down, MOST_WORDS / words);
    for (int start = top; start < end; start += most) {
        const int some = min(most, end - start);
        const int above = between(start, job.down, job.height - 1).low;
        const int below = between(start + some - 1, job.down, job.height - 1).high;
        for (int i = threadIdx.x; i < wide * (below - above + 1); i += THREADS) {
            const Stored* cell = maps + (long long)(above + i / wide) * job.width + from + i % wide;
            float sum = 0;
#pragma unroll 16
            for (int k = 0; k < job.masks; ++k) sum += shares[k] * widened(cell[(long long)k * cells]);
            sums[i] = sum;
        }
        __syncthreads();
        for (int word = threadIdx.x / 32; word < (right - left + 1) * some; word += THREADS / 32) {
            const int y = word / (right - left + 1), at = left + word % (right - left + 1), x = 32 * at + lane;
            const Between row = between(start + y, job.down, job.height - 1);
            const Between column = between(min(x, columns - 1), job.across, job.width - 1);
            const float* upper = sums + (row.low - above) * wide - from;
            const float* lower = sums + (row.high - above) * wide - from;
            const float over = upper[column.low] * (1 - column.part) + upper[column.high] * column.part;
            const float under = lower[column.low] * (1 - column.part) + lower[column.high] * column.part;
            const u32 found_bits = __ballot_sync(~0u, x < columns && over * (1 - row.part) + under * row.part > 0);
            if (lane == 0) bits[y * words + at] = found_bits;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < some * words; i += THREADS) mask[(long long)start * words + i] = bits[i];
        __syncthreads();
    }
}
