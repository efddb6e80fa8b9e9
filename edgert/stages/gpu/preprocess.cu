// One pass from decoded pictures to an engine's input: crop, scale, colour, normalise, lay out, convert.
//
// The arithmetic is that of the CPU path, bit for bit up to the grey level: planes are scaled in OpenCV's fixed point
// (modules/imgproc/src/resize.cpp, 11-bit weights) and colour converted in its 10-bit fixed point (transform_8u), so
// that a network sees the same numbers wherever a picture was prepared. edgert/stages/gpu/reference.py says the same in
// NumPy; tests hold the three together.
//
// Compiled for one combination at a time:
//   SOURCE     0 i420, 1 nv12, 2 yuyv, 3 packed of PIXEL bytes, 4 grey
//   PIXEL      bytes per pixel of a packed source; RED is where its red is, 0 or 2
//   ORDER      0 rgb, 1 bgr, 2 grey out
//   NEAREST    1: no interpolation
//   VALUE      0 float32, 1 float16, 2 uint8, 3 int8
//   GROUP      1: every channel has an address of its own; 3: packed; 4: one store of four channels
//   ALIGNED    1: STEP neighbours of a row may be stored at once (GROUP 1)
//   STEP, ROWS pixels and rows per thread
//   PAIRED     1: chroma of nv12 lies at even addresses
//   NARROW     1: some plane is one sample wide, which has no neighbour to read
//   JOBS       pictures in one launch

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if __CUDA_ARCH__ >= 700
#define ARGUMENT const __grid_constant__  // read where it is, never copied to a thread's own memory
#else
#define ARGUMENT const
#endif

struct Job {
    u64 plane[3];
    int pitch[3];
    int width, height;                // of the luma, or of the packed picture
    int chroma_width, chroma_height;
    int left, top, out_width, out_height;
    int row;                          // of the batch
    float matrix[12];                 // (3, 4) from 4Y, 4U, 4V, 1 to levels / 256, rounding included
};

struct Batch {
    u64 out;
    long long stride_n;               // strides in elements
    int stride_c, stride_y, stride_x;
    int width, height;                // of the network
    int pad;                          // grey level of the border
    float scale[3], bias[3];
    Job job[JOBS];
};

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

struct Tap { int first, second, weight; };

// Where an output pixel samples, and the weight of the second neighbour in 1/2048.
__device__ Tap tap(int at, int source, int wanted, bool across) {
    Tap out;
#if NEAREST
    double scale = __ddiv_rn(1.0, __ddiv_rn((double)wanted, (double)source));  // as OpenCV rounds it
    out.first = out.second = min((int)floor(__dmul_rn((double)at, scale)), source - 1);
    out.weight = 0;
#else
    const int twice = 2 * wanted, number = (2 * at + 1) * source - wanted;
    int whole = __float2int_rd(__fdividef((float)number, (float)twice)), rest = number - whole * twice;
    if (rest < 0) { --whole; rest += twice; }
    if (rest >= twice) { ++whole; rest -= twice; }
    float exact = __fadd_rn((float)whole, __fdiv_rn((float)rest, (float)twice));
    float below = floorf(exact);
    whole = (int)below;
    out.weight = __float2int_rn(__fmul_rn(__fsub_rn(exact, below), 2048.0f));
    if (across && (whole < 0 || whole >= source - 1)) out.weight = 0;
    out.first = min(max(whole, 0), source - 1);
    out.second = min(max(whole + 1, 0), source - 1);
#endif
    return out;
}

// The taps of a block's columns and rows, found once by its threads together: they cost more than the pixels.
struct Column { u32 offset; u32 weights; };                    // bytes; 2048 - weight and weight as two halves
struct Row { u32 upper, lower, near, far; };                   // bytes; weights in 1/2^23

struct Tables {
    Column luma_x[TILE_WIDTH];
    Row luma_y[TILE_HEIGHT];
#if HAS_CHROMA
    Column chroma_x[TILE_WIDTH];
    Row chroma_y[TILE_HEIGHT];
#if SOURCE == 0
    Row other_y[TILE_HEIGHT];  // of V, whose rows may be of another length than those of U
#endif
#endif
};

__device__ __forceinline__ Column column_of(const Tap& tap, int size, int step) {
    Column out;
    const bool is_last = !NARROW && tap.weight == 0 && tap.first == size - 1;  // then it is its own neighbour's neighbour
    out.offset = (tap.first - is_last) * step;
    out.weights = is_last ? 2048 << 16 : (2048 - tap.weight) | tap.weight << 16;
    return out;
}

__device__ __forceinline__ Row row_of(const Tap& tap, int pitch) {
    Row out;
    out.upper = tap.first * pitch;
    out.lower = tap.second * pitch;
    out.near = (2048 - tap.weight) << 12;
    out.far = tap.weight << 12;
    return out;
}

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
    const int thread = threadIdx.y * 32 + threadIdx.x;
    for (int i = thread; i < TILE_WIDTH; i += 256) {
        int at = min(max(left + i - job.left, 0), job.out_width - 1);
        tables.luma_x[i] = column_of(tap(at, job.width, job.out_width, true), job.width, LUMA_STEP);
    }
    for (int i = 255 - thread; i < TILE_HEIGHT; i += 256) {
        int at = min(max(top + i - job.top, 0), job.out_height - 1);
        tables.luma_y[i] = row_of(tap(at, job.height, job.out_height, false), job.pitch[0]);
    }
#if HAS_CHROMA
    for (int i = (thread + 128) % 256; i < TILE_WIDTH; i += 256) {
        int at = min(max(left + i - job.left, 0), job.out_width - 1);
        Tap found = tap(at, job.chroma_width, job.out_width, true);
        tables.chroma_x[i] = column_of(found, job.chroma_width, CHROMA_STEP);
    }
    for (int i = (383 - thread) % 256; i < TILE_HEIGHT; i += 256) {
        int at = min(max(top + i - job.top, 0), job.out_height - 1);
        Tap found = tap(at, job.chroma_height, job.out_height, false);
        tables.chroma_y[i] = row_of(found, job.pitch[SOURCE == 2 ? 0 : 1]);
#if SOURCE == 0
        tables.other_y[i] = row_of(found, job.pitch[2]);
#endif
    }
#endif
    __syncthreads();
}

// a * (2048 - weight) + b * weight for two pairs of bytes, a0 a1 and b0 b1, from the lowest byte on.
__device__ __forceinline__ void blend(u32 pairs, u32 weights, int& first, int& second) {
#if __CUDA_ARCH__ >= 610
    asm("dp2a.lo.u32.u32 %0, %1, %2, 0;" : "=r"(first) : "r"(weights), "r"(pairs));
    asm("dp2a.hi.u32.u32 %0, %1, %2, 0;" : "=r"(second) : "r"(weights), "r"(pairs));
#else
    first = (pairs & 255) * (weights & 0xFFFF) + (pairs >> 8 & 255) * (weights >> 16);
    second = (pairs >> 16 & 255) * (weights & 0xFFFF) + (pairs >> 24) * (weights >> 16);
#endif
}

__device__ __forceinline__ int blend(u32 a, u32 b, u32 weights) {
    return a * (weights & 0xFFFF) + b * (weights >> 16);
}

__device__ __forceinline__ bool reads_far(const Column& x) { return !NARROW || x.weights >> 16; }

__device__ __forceinline__ u32 high(u32 value, u32 weight, u32 more) {
    u32 sum;
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(value & ~15u), "r"(weight), "r"(more));
    return sum;
}

// Rows are blended last; OpenCV's ((a >> 4) * near >> 16) + ((b >> 4) * far >> 16) + 2, which is 4 levels and a rest.
__device__ __forceinline__ u32 fourfold(u32 upper, u32 lower, const Row& y) {
    return high(lower, y.far, high(upper, y.near, 2));
}

__device__ __forceinline__ int across(const u8* plane, u32 row, const Column& x, int step) {
    const u32 at = row + x.offset;
    return blend(plane[at], reads_far(x) ? plane[at + step] : 0, x.weights);
}

// A row of weight 0 is not even read, which halves the traffic where the scale is a whole number.
__device__ __forceinline__ u32 sample(const u8* plane, const Column& x, const Row& y, int step) {
    u32 upper = across(plane, y.upper, x, step);
    return fourfold(upper, y.far ? across(plane, y.lower, x, step) : 0, y);
}

// Numbers below 2^23 to float through the bits of 2^23 + n: conversions run at a quarter of the rate.
__device__ __forceinline__ float exact(u32 number) {
    return __fsub_rn(__int_as_float(0x4B000000 | number), 8388608.0f);
}

__device__ __forceinline__ float four_levels(u32 fourfold) { return exact(fourfold & ~3u); }

#if HAS_CHROMA
__device__ __forceinline__ void pair_across(const u8* plane, u32 row, const Column& x, int& u, int& v) {
    const u32 at = row + x.offset;
    u32 near = *(const u16*)(plane + at), far = reads_far(x) ? *(const u16*)(plane + at + 2) : 0;
    blend(__byte_perm(near, far, 0x5140), x.weights, u, v);
}

__device__ __forceinline__ void chroma(
    const Job& job, const Column& x, const Row& y, const Tables& tables, int row, float& u, float& v) {
#if SOURCE == 1 && PAIRED
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
// OpenCV's (sum + 512) >> 10, clamped: sums of 1/1024 are exact in float, and the offset's 1/2048 turns ties up as the
// shift does. In 256ths, saturation clamps below for nothing, and adding 3 * 2^14 rounds to whole levels.
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

// The channels of one pixel, in 256ths where they come from YUV; UNIT turns them into levels.
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

__device__ __forceinline__ float normal(const Batch& batch, int channel, float grey) {
    return __fmaf_rn(grey, batch.scale[channel] * UNIT, batch.bias[channel]);
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

__device__ __forceinline__ void store(const Batch& batch, Value* out, int x, const Levels* grey) {
#if GROUP == 1 && ALIGNED
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        float numbers[STEP];
        Pack<STEP> packed;
#pragma unroll
        for (int i = 0; i < STEP; ++i) numbers[i] = normal(batch, c, grey[i].channel[c]);
        pack<STEP>(numbers, packed);
        *(Pack<STEP>*)(out + (u32)(c * batch.stride_c + x)) = packed;
    }
#else
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        if (x + i >= batch.width) continue;
        Value* pixel = out + (u32)((x + i) * batch.stride_x);
#if GROUP == 4
        float numbers[4];
        Pack<4> packed;
#pragma unroll
        for (int c = 0; c < 4; ++c) numbers[c] = c < CHANNELS ? normal(batch, c, grey[i].channel[c % 3]) : 0.0f;
        pack<4>(numbers, packed);
        *(Pack<4>*)pixel = packed;
#else
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) 
            pixel[(u32)(c * batch.stride_c)] = value_of(normal(batch, c, grey[i].channel[c]));
#endif
    }
#endif
}

extern "C" __global__ void __launch_bounds__(256) preprocess(ARGUMENT Batch batch) {
    __shared__ Tables tables;
    const Job& job = batch.job[blockIdx.z];
    const int left = blockIdx.x * TILE_WIDTH, top = blockIdx.y * TILE_HEIGHT;
    const int right = job.left + job.out_width, bottom = job.top + job.out_height;
    if (left < right && left + TILE_WIDTH > job.left && top < bottom && top + TILE_HEIGHT > job.top)
        find(tables, job, left, top);
    const int column = threadIdx.x * STEP, x = left + column;
    if (x >= batch.width) return;
    const float pad = exact(batch.pad) / UNIT;
    Value* picture = (Value*)batch.out + job.row * batch.stride_n;
    Column across[STEP], chroma_across[STEP];
    u32 inside = 0;  // a bit for each pixel of this thread's that the picture covers
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
        if (y >= batch.height) return;
        Levels grey[STEP];
        const bool is_lit = y >= job.top && y < bottom && inside;
        if (is_lit) {
            const Row down = tables.luma_y[row];
            Row chroma_down = down;
#if HAS_CHROMA
            chroma_down = tables.chroma_y[row];
#endif
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                grey[i] = levels(job, tables, across[i], down, chroma_across[i], chroma_down, row);
        }
        if (!is_lit || inside != (1u << STEP) - 1) {
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                if (!is_lit || !(inside >> i & 1)) grey[i].channel[0] = grey[i].channel[1] = grey[i].channel[2] = pad;
        }
        store(batch, picture + (u32)(y * batch.stride_y), x, grey);
    }
}
