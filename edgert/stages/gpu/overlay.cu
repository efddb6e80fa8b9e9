// Makes a BGR image of a frame on the GPU with shapes painted on it: scale, convert, paint, in one pass.
//
// The image is that of bgr_into (edgert/runtime/frame.py): planes scaled as OpenCV scales them (scale_two.cuh,
// scale_many.cuh), chroma repeated, color in OpenCV's fixed point. The shapes are a list of items in painting order
// (display_list.py). Each block of 64 x 16 pixels finds the items that touch it, and each thread paints four pixels in
// registers, so that the image is written once.
//
// Compiled for one combination at a time:
//   FORMAT      0 i420, 1 nv12, 2 yuyv, 3 packed of PIXEL bytes, 4 gray
//   PIXEL       bytes per pixel of a packed source; RED is where its red is, 0 or 2
//   LUMA_AREA   1: luma, or the packed image, is scaled by area; 0: linearly if it is scaled
//   CHROMA_AREA 1: chroma is scaled by area; 0: linearly
//   ALIGNED     1: four pixels of a row may be stored as three words
//   INK         the dark edge of boxes, red << 16 | green << 8 | blue

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if __CUDA_ARCH__ >= 700
#define ARGUMENT const __grid_constant__
#else
#define ARGUMENT const
#endif

enum { TEXT, BOX, MASK, STROKE };

struct Item {
    int left, top, right, bottom;     // of the image, clipped to it; the latter two exclusive
    u32 kind, color;
    u64 at;                           // of its bytes: coverage of letters, a box's pattern, classes, edges
    int p[2];                         // where those bytes start in the image; a mask's width and height
    u32 q[2];                         // text: pitch, color of the letters; box: size; mask: its tables; stroke: edges
};

struct Job { int out_width, out_height; };  // the fields that scale_many.cuh reads

struct Drawing {
    u64 plane[3], out, items, lookups;
    int pitch[3], count;
    int width, height;                // of the luma, or of the packed image
    int chroma_width, chroma_height;
    Job luma, chroma;                 // what both are scaled to
    int chroma_shift;                 // 1: two rows share one of chroma
    int floor, shift;                 // luma below floor counts as floor; shift of the matrix
    int matrix[12];                   // (3, 4) from Y, U, V, 1 to B, G, R << shift, rounding included
};

#include "strokes.cuh"

#define SOURCE 0
#define NARROW 1
namespace two {
#define METHOD 0
#include "scale_two.cuh"
#undef METHOD
}
namespace many {
#define METHOD 2
#include "scale_many.cuh"
#undef METHOD
}
#if LUMA_AREA
namespace fine = many;
#else
namespace fine = two;
#endif
#if CHROMA_AREA
namespace coarse = many;
#else
namespace coarse = two;
#endif

#define TILE_WIDTH 64
#define TILE_HEIGHT 16
#define EACH 4
#define THREADS 256
#define HAS_CHROMA (FORMAT <= 2)
#define LUMA_STEP (FORMAT == 2 ? 2 : FORMAT == 3 ? PIXEL : 1)
#define CHROMA_STEP (FORMAT == 1 ? 2 : FORMAT == 2 ? 4 : 1)

struct Tables {
    fine::Column luma_x[TILE_WIDTH];
    fine::Row luma_y[TILE_HEIGHT];
#if HAS_CHROMA
    coarse::Column chroma_x[TILE_WIDTH / 2];
    coarse::Row chroma_y[TILE_HEIGHT], other_y[TILE_HEIGHT];  // of U and V, whose rows may differ in length
#endif
};

__device__ __forceinline__ void find(Tables& tables, const Drawing& job, int left, int top, int thread) {
    const int manner = fine::manner_of(job.width, job.height, job.luma);
    for (int i = thread; i < TILE_WIDTH; i += THREADS) {
        const int at = min(left + i, job.luma.out_width - 1);
        tables.luma_x[i] = fine::column_of(
            fine::tap(at, job.width, job.luma.out_width, true, manner), job.width, LUMA_STEP);
    }
    for (int i = THREADS - 1 - thread; i < TILE_HEIGHT; i += THREADS) {
        const int at = min(top + i, job.luma.out_height - 1);
        tables.luma_y[i] = fine::row_of(fine::tap(at, job.height, job.luma.out_height, false, manner), job.pitch[0]);
    }
#if HAS_CHROMA
    const int other = coarse::manner_of(job.chroma_width, job.chroma_height, job.chroma);
    for (int i = (thread + 128) % THREADS; i < TILE_WIDTH / 2; i += THREADS) {
        const int at = min(left / 2 + i, job.chroma.out_width - 1);
        tables.chroma_x[i] = coarse::column_of(
            coarse::tap(at, job.chroma_width, job.chroma.out_width, true, other), job.chroma_width, CHROMA_STEP);
    }
    for (int i = (thread + 64) % THREADS; i < TILE_HEIGHT; i += THREADS) {
        const int at = min((top >> job.chroma_shift) + i, job.chroma.out_height - 1);
        const coarse::Tap found = coarse::tap(at, job.chroma_height, job.chroma.out_height, false, other);
        tables.chroma_y[i] = coarse::row_of(found, job.pitch[FORMAT == 2 ? 0 : 1]);
        tables.other_y[i] = coarse::row_of(found, job.pitch[FORMAT == 0 ? 2 : FORMAT == 2 ? 0 : 1]);
    }
#endif
    __syncthreads();
}

__device__ __forceinline__ int clamped(int level) { return min(max(level, 0), 255); }

// B, G, R of one pixel. u and v are those of the pair that it belongs to.
__device__ __forceinline__ void convert(
    const Drawing& job, const fine::Column& x, const fine::Row& y, int u, int v, int* bgr) {
    const u8* plane = (const u8*)job.plane[0];
#if FORMAT == 3
    bgr[0] = fine::sample(plane + 2 - RED, x, y, PIXEL) >> 2;
    bgr[1] = fine::sample(plane + 1, x, y, PIXEL) >> 2;
    bgr[2] = fine::sample(plane + RED, x, y, PIXEL) >> 2;
#elif FORMAT == 4
    bgr[0] = bgr[1] = bgr[2] = fine::sample(plane, x, y, 1) >> 2;
#else
    const int luma = max((int)(fine::sample(plane, x, y, LUMA_STEP) >> 2), job.floor);
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const int* row = job.matrix + 4 * c;
        bgr[c] = clamped((row[0] * luma + row[1] * u + row[2] * v + row[3]) >> job.shift);
    }
#endif
}

// a * (255 - part) / 255 + b * part / 255, to the nearest level.
__device__ __forceinline__ int mixed(int a, int b, int part) { return (a * (255 - part) + b * part + 127) / 255; }

__device__ __forceinline__ int channel(u32 color, int c) { return color >> 8 * c & 255; }

// The row or column of a box's pattern for place `at` of `size`: all places between the ends have the middle one.
__device__ __forceinline__ int folded(int at, int size, int middle) {
    return at < middle ? at : max(min(at, middle), at - max(size - (2 * middle + 1), 0));
}

__device__ __forceinline__ void paint_mask(const Item& item, int x, int y, int* bgr) {
    const u64 tables = (u64)item.q[1] << 32 | item.q[0];
    const u32* table = (const u32*)tables;  // 256 of B, G, R to add and 255ths to keep; then taps: first, second, weight
    const u16* across = (const u16*)(tables + 1024) + 4 * (x - item.left);
    const u16* down = (const u16*)(tables + 1024) + 4 * (item.right - item.left + y - item.top);
    const u8 *upper = (const u8*)item.at + down[0] * item.p[0], *lower = (const u8*)item.at + down[1] * item.p[0];
    const u32 a = table[upper[across[0]]], b = table[upper[across[1]]];
    const u32 c = table[lower[across[0]]], d = table[lower[across[1]]];
    const int far = across[2], below = down[2];
    int found[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // OpenCV's linear scaling, as in scale_two.cuh
        const int over = channel(a, k) * (2048 - far) + channel(b, k) * far;
        const int under = channel(c, k) * (2048 - far) + channel(d, k) * far;
        found[k] = (((over >> 4) * (2048 - below) >> 16) + ((under >> 4) * below >> 16) + 2) >> 2;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) bgr[k] = min((bgr[k] * found[3] + 127) / 255 + found[k], 255);
}

__device__ __forceinline__ void paint(const Item& item, const u8* filter, int x, int y, int* bgr) {
    const u8* bytes = (const u8*)item.at;
    if (item.kind == STROKE) {
        paint_stroke(item, filter, x, y, bgr);
    } else if (item.kind == MASK) {
        paint_mask(item, x, y, bgr);
    } else if (item.kind == BOX) {
        const int middle = item.color >> 24, width = item.q[0], height = item.q[1];
        const int column = folded(x - item.p[0], width, middle), row = folded(y - item.p[1], height, middle);
        const int code = bytes[row * min(width, 2 * middle + 1) + column];
        if (!code) return;
        const u32 color = code == 1 ? INK : item.color;
#pragma unroll
        for (int c = 0; c < 3; ++c) bgr[c] = channel(color, c);
    } else {
        const int part = bytes[(y - item.p[1]) * item.q[0] + x - item.p[0]];
#pragma unroll
        for (int c = 0; c < 3; ++c) bgr[c] = mixed(channel(item.color, c), channel(item.q[1], c), part);
    }
}

// Whether an item paints anything in a block; the inside of a large box is empty.
__device__ __forceinline__ bool touches(const Item& item, int left, int top) {
    const int right = left + TILE_WIDTH, bottom = top + TILE_HEIGHT;
    if (item.left >= right || item.right <= left || item.top >= bottom || item.bottom <= top) return false;
    if (item.kind != BOX) return true;
    const int middle = item.color >> 24, width = item.q[0], height = item.q[1];
    return left < item.p[0] + middle || right > item.p[0] + width - middle ||
           top < item.p[1] + middle || bottom > item.p[1] + height - middle;
}

extern "C" __global__ void __launch_bounds__(THREADS) overlay(ARGUMENT Drawing job) {
    __shared__ Tables tables;
    __shared__ u32 touching[THREADS / 32];
    const int thread = threadIdx.y * (TILE_WIDTH / EACH) + threadIdx.x;
    const int left = blockIdx.x * TILE_WIDTH, top = blockIdx.y * TILE_HEIGHT;
    find(tables, job, left, top, thread);
    const int column = threadIdx.x * EACH, x = left + column, y = top + threadIdx.y;
    const int width = job.luma.out_width, height = job.luma.out_height;
    const bool is_inside = x < width && y < height;
    int pixels[EACH][3];
    if (is_inside) {
        const fine::Row down = tables.luma_y[threadIdx.y];
        int u = 0, v = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
#if HAS_CHROMA
            if (i % 2 == 0) {
                const coarse::Column across = tables.chroma_x[(column + i) / 2];
                const int row = threadIdx.y >> job.chroma_shift;
                const u8* first = (const u8*)job.plane[FORMAT == 2 ? 0 : 1] + (FORMAT == 2 ? 1 : 0);
                const u8* second = FORMAT == 0 ? (const u8*)job.plane[2] : first + (FORMAT == 2 ? 2 : 1);
                u = coarse::sample(first, across, tables.chroma_y[row], CHROMA_STEP) >> 2;
                v = coarse::sample(second, across, tables.other_y[row], CHROMA_STEP) >> 2;
            }
#endif
            convert(job, tables.luma_x[column + i], down, u, v, pixels[i]);
        }
    }
    const Item* items = (const Item*)job.items;
    for (int base = 0; base < job.count; base += THREADS) {
        __syncthreads();
        if (thread < THREADS / 32) touching[thread] = 0;
        __syncthreads();
        if (base + thread < job.count && touches(items[base + thread], left, top))
            atomicOr(&touching[thread / 32], 1u << thread % 32);
        __syncthreads();
        for (int word = 0; word < THREADS / 32; ++word)
            for (u32 rest = touching[word]; rest; rest &= rest - 1) {
                const Item& item = items[base + 32 * word + __ffs(rest) - 1];
                if (!is_inside || y < item.top || y >= item.bottom) continue;
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    if (x + i >= item.left && x + i < item.right) paint(item, (const u8*)job.lookups, x + i, y, pixels[i]);
            }
    }
    if (!is_inside) return;
    u8* out = (u8*)job.out + 3 * ((long long)y * width + x);
#if ALIGNED
    u32 words[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < 12; ++k) words[k / 4] |= (u32)pixels[k / 3][k % 3] << 8 * (k % 4);
#pragma unroll
    for (int k = 0; k < 3; ++k) ((u32*)out)[k] = words[k];
#else
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        for (int c = 0; c < 3 && x + i < width; ++c) out[3 * i + c] = (u8)pixels[i][c];
#endif
}
