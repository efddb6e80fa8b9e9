// Linear and nearest scaling: two source pixels, or one, to one. The arithmetic is OpenCV's fixed point
// (resizeGeneric_ with 11-bit weights). METHOD 0 is linear, 1 nearest.

struct Tap { int first, second, weight; };

// The two source pixels of an output pixel, and the weight of the second in 1/2048.
__device__ Tap tap(int at, int source, int wanted, bool across, int) {
    Tap out;
#if METHOD == 1
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

__device__ __forceinline__ int manner_of(int, int, const Job&) { return 0; }

struct Column { u32 offset; u32 weights; };                    // bytes; 2048 - weight and weight as two halves
struct Row { u32 upper, lower, near, far; };                   // bytes; weights in 1/2^23

__device__ __forceinline__ Column column_of(const Tap& tap, int size, int step) {
    Column out;
    const bool is_last = !NARROW && tap.weight == 0 && tap.first == size - 1;  // then read it as the second of a pair
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

// Blends two rows by OpenCV's ((a >> 4) * near >> 16) + ((b >> 4) * far >> 16) + 2: four times the level, and a rest.
__device__ __forceinline__ u32 fourfold(u32 upper, u32 lower, const Row& y) {
    return high(lower, y.far, high(upper, y.near, 2));
}

__device__ __forceinline__ int across(const u8* plane, u32 row, const Column& x, int step) {
    const u32 at = row + x.offset;
    return blend(plane[at], reads_far(x) ? plane[at + step] : 0, x.weights);
}

// A row of weight 0 is not read, which halves the traffic if the scale is a whole number.
__device__ __forceinline__ u32 sample(const u8* plane, const Column& x, const Row& y, int step) {
    u32 upper = across(plane, y.upper, x, step);
    return fourfold(upper, y.far ? across(plane, y.lower, x, step) : 0, y);
}

__device__ __forceinline__ void pair_across(const u8* plane, u32 row, const Column& x, int& u, int& v) {
    const u32 at = row + x.offset;
    u32 near = *(const u16*)(plane + at), far = reads_far(x) ? *(const u16*)(plane + at + 2) : 0;
    blend(__byte_perm(near, far, 0x5140), x.weights, u, v);
}
