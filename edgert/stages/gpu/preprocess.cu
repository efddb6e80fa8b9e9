// One pass from decoded images to an engine's input: crop, scale, color, normalize, lay out, convert.
//
// The arithmetic is that of the CPU path, bit for bit up to the gray level: planes are scaled as OpenCV scales them
// (modules/imgproc/src/resize.cpp; scale_two.cuh and scale_many.cuh), and color is converted in its 10-bit fixed point
// (transform_8u). So a network sees the same numbers wherever an image was prepared. Tests run this file
// on the processor, too, and compare both.
//
// Compiled for one combination at a time:
//   SOURCE     0 i420, 1 nv12, 2 yuyv, 3 packed of PIXEL bytes, 4 gray
//   PIXEL      bytes per pixel of a packed source; RED is where its red is, 0 or 2
//   ORDER      0 rgb, 1 bgr, 2 gray out
//   METHOD     how planes are scaled: 0 linear, 1 nearest, 2 area, 3 cubic
//   VALUE      0 float32, 1 float16, 2 uint8, 3 int8
//   GROUP      1: each channel is stored separately; 4: one store of four channels
//   ALIGNED    1: STEP neighbors of a row may be stored at once (GROUP 1)
//   STEP, ROWS pixels and rows per thread
//   PAIRED     1: chroma of nv12 is at even addresses
//   NARROW     1: a plane is one sample wide, which has no neighbor to read
//   JOBS       images in one launch
//   TARGETS    number of tensors that are written

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if __CUDA_ARCH__ >= 700
#define ARGUMENT const __grid_constant__  // read in place, never copied to a thread's local memory
#else
#define ARGUMENT const
#endif

struct Job {
    u64 plane[3];
    int pitch[3];
    int width, height;                // of the luma, or of the packed image
    int chroma_width, chroma_height;
    int left, top, out_width, out_height;
    int row;                          // of the batch; with several tensors, the upper half is the tensor's number
    float matrix[12];                 // (3, 4) from 4Y, 4U, 4V, 1 to levels / 256, rounding included
};

struct Target {
    u64 out;
    long long stride_n;               // strides in elements
    int stride_c, stride_y, stride_x;
    int width, height;                // of the network
    int pad;                          // gray level of the border
    float scale[3], bias[3];
};

struct Batch {
    Target targets[TARGETS];
    Job job[JOBS];
};

#if TARGETS > 1
#define TARGET_OF(job) (job.row >> 16)
#define ROW_OF(job) (job.row & 0xffff)
#else
#define TARGET_OF(job) 0
#define ROW_OF(job) job.row  // read where it is used: a register held from the start reduces occupancy
#endif

#if VALUE == 0
typedef float Value;
#elif VALUE == 1
typedef u16 Value;
#elif VALUE == 2
typedef u8 Value;
#else
typedef signed char Value;
#endif

template <int N> struct __align__(N * sizeof(Value)) Pack { Value value[N]; };

#define TILE_WIDTH (32 * STEP)
#define TILE_HEIGHT (8 * ROWS)
#define CHANNELS (ORDER == 2 ? 1 : 3)
#define IS_YUV (SOURCE <= 2)
#define HAS_CHROMA (IS_YUV && ORDER != 2)

#if METHOD <= 1
#include "scale_two.cuh"
#else
#include "scale_many.cuh"
#endif

// The taps of a block's columns and rows, computed once by all its threads, as they cost more than the pixels.
struct Tables {
    Column luma_x[TILE_WIDTH];
    Row luma_y[TILE_HEIGHT];
#if HAS_CHROMA
    Column chroma_x[TILE_WIDTH];
    Row chroma_y[TILE_HEIGHT];
#if SOURCE == 0
    Row other_y[TILE_HEIGHT];  // of V, whose rows may differ in length from those of U
#endif
#endif
};

#if SOURCE == 2
#define LUMA_STEP 2
#define CHROMA_STEP 4
#elif SOURCE == 3
#define LUMA_STEP PIXEL
#else
#define LUMA_STEP 1
#define CHROMA_STEP (SOURCE == 1 ? 2 : 1)
#endif

__device__ __forceinline__ void find(Tables& tables, const Job& job, int left, int top) {
    const int thread = threadIdx.y * 32 + threadIdx.x, manner = manner_of(job.width, job.height, job);
    for (int i = thread; i < TILE_WIDTH; i += 256) {
        int at = min(max(left + i - job.left, 0), job.out_width - 1);
        tables.luma_x[i] = column_of(tap(at, job.width, job.out_width, true, manner), job.width, LUMA_STEP);
    }
    for (int i = 255 - thread; i < TILE_HEIGHT; i += 256) {
        int at = min(max(top + i - job.top, 0), job.out_height - 1);
        tables.luma_y[i] = row_of(tap(at, job.height, job.out_height, false, manner), job.pitch[0]);
    }
#if HAS_CHROMA
    const int other = manner_of(job.chroma_width, job.chroma_height, job);
    for (int i = (thread + 128) % 256; i < TILE_WIDTH; i += 256) {
        int at = min(max(left + i - job.left, 0), job.out_width - 1);
        Tap found = tap(at, job.chroma_width, job.out_width, true, other);
        tables.chroma_x[i] = column_of(found, job.chroma_width, CHROMA_STEP);
    }
    for (int i = (383 - thread) % 256; i < TILE_HEIGHT; i += 256) {
        int at = min(max(top + i - job.top, 0), job.out_height - 1);
        Tap found = tap(at, job.chroma_height, job.out_height, false, other);
        tables.chroma_y[i] = row_of(found, job.pitch[SOURCE == 2 ? 0 : 1]);
#if SOURCE == 0
        tables.other_y[i] = row_of(found, job.pitch[2]);
#endif
    }
#endif
    __syncthreads();
}

// Converts numbers below 2^23 to float through the bits of 2^23 + n, as conversions run at a quarter of the rate.
__device__ __forceinline__ float exact(u32 number) {
    return __fsub_rn(__int_as_float(0x4B000000 | number), 8388608.0f);
}

__device__ __forceinline__ float four_levels(u32 fourfold) { return exact(fourfold & ~3u); }

#if HAS_CHROMA
__device__ __forceinline__ void chroma(
    const Job& job, const Column& x, const Row& y, const Tables& tables, int row, float& u, float& v) {
#if SOURCE == 1 && PAIRED && METHOD <= 1
    const u8* plane = (const u8*)job.plane[1];
    int upper_u, upper_v, lower_u = 0, lower_v = 0;
    pair_across(plane, y.upper, x, upper_u, upper_v);
    if (y.far) pair_across(plane, y.lower, x, lower_u, lower_v);
    u = four_levels(fourfold(upper_u, lower_u, y));
    v = four_levels(fourfold(upper_v, lower_v, y));
#elif SOURCE == 1
    u = four_levels(sample((const u8*)job.plane[1], x, y, 2));
    v = four_levels(sample((const u8*)job.plane[1] + 1, x, y, 2));
#elif SOURCE == 0
    u = four_levels(sample((const u8*)job.plane[1], x, y, 1));
    v = four_levels(sample((const u8*)job.plane[2], x, tables.other_y[row], 1));
#else
    u = four_levels(sample((const u8*)job.plane[0] + 1, x, y, 4));
    v = four_levels(sample((const u8*)job.plane[0] + 3, x, y, 4));
#endif
}
#endif

struct Levels { float channel[3]; };

#if IS_YUV
// OpenCV's (sum + 512) >> 10, clamped. Sums of 1/1024 are exact in float, and the offset's 1/2048 rounds ties up as the
// shift does. In 256ths, saturation clamps below at no cost, and adding 3 * 2^14 rounds to whole levels.
__device__ __forceinline__ float toned(const float* row, float y, float u, float v) {
    const float shift = 49152.0f;
#if HAS_CHROMA
    float part = __fmaf_rn(row[2], v, __fmaf_rn(row[1], u, row[3])), sum;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(row[0]), "f"(y), "f"(part));
#else
    float sum;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(row[0]), "f"(y), "f"(row[3]));
#endif
    return __fsub_rn(fminf(__fadd_rn(sum, shift), shift + 255.0f / 256), shift);
}
#endif

// Unit of the channels of a pixel, which are in 256ths if they come from YUV.
#define UNIT (IS_YUV ? 256.0f : 1.0f)

__device__ __forceinline__ Levels levels(
    const Job& job, const Tables& tables, const Column& x, const Row& y, const Column& cx, const Row& cy, int row) {
    Levels out;
    const u8* luma = (const u8*)job.plane[0];
#if IS_YUV
    float tone = four_levels(sample(luma, x, y, LUMA_STEP)), u = 0, v = 0;
#if HAS_CHROMA
    chroma(job, cx, cy, tables, row, u, v);
#endif
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) out.channel[c] = toned(job.matrix + 4 * c, tone, u, v);
#elif SOURCE == 3
    u32 red = sample(luma + RED, x, y, PIXEL) >> 2;
    u32 green = sample(luma + 1, x, y, PIXEL) >> 2;
    u32 blue = sample(luma + 2 - RED, x, y, PIXEL) >> 2;
#if ORDER == 2
    out.channel[0] = exact((9798 * red + 19235 * green + 3735 * blue + 16384) >> 15);  // OpenCV's RGB2GRAY
#else
    out.channel[0] = exact(ORDER == 0 ? red : blue);
    out.channel[1] = exact(green);
    out.channel[2] = exact(ORDER == 0 ? blue : red);
#endif
#else
    out.channel[0] = out.channel[1] = out.channel[2] = exact(sample(luma, x, y, 1) >> 2);
#endif
    return out;
}

__device__ __forceinline__ float normal(const Target& target, int channel, float gray) {
    return __fmaf_rn(gray, target.scale[channel] * UNIT, target.bias[channel]);
}

__device__ __forceinline__ Value value_of(float number) {
#if VALUE == 0
    return number;
#elif VALUE == 1
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(number));
    return half;
#elif VALUE == 2
    return (u8)min(max(__float2int_rn(number), 0), 255);
#else
    return (signed char)min(max(__float2int_rn(number), -128), 127);
#endif
}

template <int N> __device__ __forceinline__ void pack(const float* numbers, Pack<N>& out) {
#if VALUE == 1 && __CUDA_ARCH__ >= 800
    if (N % 2 == 0) {
        u32* pairs = (u32*)&out;
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pairs[i]) : "f"(numbers[2 * i + 1]), "f"(numbers[2 * i]));
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; ++i) out.value[i] = value_of(numbers[i]);
}

__device__ __forceinline__ void store(const Target& target, Value* out, int x, const Levels* gray) {
#if GROUP == 1 && ALIGNED
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        float numbers[STEP];
        Pack<STEP> packed;
#pragma unroll
        for (int i = 0; i < STEP; ++i) numbers[i] = normal(target, c, gray[i].channel[c]);
        pack<STEP>(numbers, packed);
        *(Pack<STEP>*)(out + (u32)(c * target.stride_c + x)) = packed;
    }
#else
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        if (x + i >= target.width) continue;
        Value* pixel = out + (u32)((x + i) * target.stride_x);
#if GROUP == 4
        float numbers[4];
        Pack<4> packed;
#pragma unroll
        for (int c = 0; c < 4; ++c) numbers[c] = c < CHANNELS ? normal(target, c, gray[i].channel[c % 3]) : 0.0f;
        pack<4>(numbers, packed);
        *(Pack<4>*)pixel = packed;
#else
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) 
            pixel[(u32)(c * target.stride_c)] = value_of(normal(target, c, gray[i].channel[c]));
#endif
    }
#endif
}

extern "C" __global__ void __launch_bounds__(256) preprocess(ARGUMENT Batch batch) {
    __shared__ Tables tables;
    const Job& job = batch.job[blockIdx.z];
    const Target& target = batch.targets[TARGET_OF(job)];
    const int left = blockIdx.x * TILE_WIDTH, top = blockIdx.y * TILE_HEIGHT;
    const int right = job.left + job.out_width, bottom = job.top + job.out_height;
    if (left < right && left + TILE_WIDTH > job.left && top < bottom && top + TILE_HEIGHT > job.top)
        find(tables, job, left, top);
    const int column = threadIdx.x * STEP, x = left + column;
    if (x >= target.width) return;
    const float pad = exact(target.pad) / UNIT;
    Value* image = (Value*)target.out + ROW_OF(job) * target.stride_n;
    Column across[STEP], chroma_across[STEP];
    u32 inside = 0;  // a bit for each pixel of this thread that the image covers
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        across[i] = tables.luma_x[column + i];
#if HAS_CHROMA
        chroma_across[i] = tables.chroma_x[column + i];
#endif
        inside |= (x + i >= job.left && x + i < right) << i;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = threadIdx.y + 8 * r, y = top + row;
        if (y >= target.height) return;
        Levels gray[STEP];
        const bool is_lit = y >= job.top && y < bottom && inside;
        if (is_lit) {
            const Row down = tables.luma_y[row];
            Row chroma_down = down;
#if HAS_CHROMA
            chroma_down = tables.chroma_y[row];
#endif
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                gray[i] = levels(job, tables, across[i], down, chroma_across[i], chroma_down, row);
        }
        if (!is_lit || inside != (1u << STEP) - 1) {
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                if (!is_lit || !(inside >> i & 1)) gray[i].channel[0] = gray[i].channel[1] = gray[i].channel[2] = pad;
        }
        store(target, image + (u32)(y * target.stride_y), x, gray);
    }
}
