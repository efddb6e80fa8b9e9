// Area and cubic scaling: many source pixels to one. The arithmetic is OpenCV's (resizeAreaFast_ and
// computeResizeAreaTab for area, resizeGeneric_ with 11-bit weights for cubic).
//
// METHOD 2 is area: the average of a cell if both axes shrink, of a box if they shrink by whole numbers, and linear
// between edges if one grows. METHOD 3 is cubic. Every operation is rounded separately, never fused.

enum Manner { BETWEEN, BOX, COVER };

// The source pixels of one output pixel along an axis, and their weights.
struct Tap {
    int first, count, last;           // last: of the axis, where indices end
    float weight[4];                  // cubic: each; cover: the first, the inner ones, the last; between: weight[1] only
};
typedef Tap Column;
struct Row { Tap tap; int pitch; };

__device__ __forceinline__ double scale_of(int source, int wanted) {
    return __ddiv_rn(1.0, __ddiv_rn((double)wanted, (double)source));
}

__device__ __forceinline__ bool is_whole(double scale) { return fabs(scale - rint(scale)) < 2.220446049250313e-16; }

__device__ __forceinline__ int manner_of(int width, int height, const Job& job) {
    const double across = scale_of(width, job.out_width), down = scale_of(height, job.out_height);
    if (across < 1 || down < 1) return BETWEEN;
    return is_whole(across) && is_whole(down) ? BOX : COVER;
}

__device__ Tap cubic_tap(int at, int source, int wanted) {
    const float a = -0.75f;
    const float exact = (float)__dsub_rn(__dmul_rn(at + 0.5, scale_of(source, wanted)), 0.5), below = floorf(exact);
    const float x = __fsub_rn(exact, below), left = __fadd_rn(x, 1), back = __fsub_rn(1, x);
    float weight[4];
    weight[0] = __fmul_rn(__fadd_rn(__fmul_rn(__fsub_rn(__fmul_rn(a, left), 5 * a), left), 8 * a), left);
    weight[0] = __fsub_rn(weight[0], 4 * a);
    weight[1] = __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(__fmul_rn(a + 2, x), a + 3), x), x), 1);
    weight[2] = __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(__fmul_rn(a + 2, back), a + 3), back), back), 1);
    weight[3] = __fsub_rn(__fsub_rn(__fsub_rn(1, weight[0]), weight[1]), weight[2]);
    Tap out = {(int)below - 1, 4, source - 1};
    for (int k = 0; k < 4; ++k) out.weight[k] = rintf(__fmul_rn(weight[k], 2048));
    return out;
}

__device__ Tap between_tap(int at, int source, int wanted, bool across) {
    const double inverse = __ddiv_rn((double)wanted, (double)source);
    const int first = (int)floor(__dmul_rn((double)at, __ddiv_rn(1.0, inverse)));
    float far = (float)__dsub_rn(at + 1.0, __dmul_rn(first + 1.0, inverse));
    far = far <= 0 ? 0 : __fsub_rn(far, floorf(far));
    if (across && first >= source - 1) far = 0;
    return {min(first, source - 1), 0, source - 1, {0, rintf(__fmul_rn(far, 2048))}};
}

// Parts below a thousandth of a pixel are left out, as OpenCV's computeResizeAreaTab does.
__device__ Tap cover_tap(int at, int source, int wanted) {
    const double scale = scale_of(source, wanted), start = __dmul_rn((double)at, scale), stop = __dadd_rn(start, scale);
    const double cell = fmin(scale, __dsub_rn((double)source, start));
    const int last = min((int)floor(stop), source - 1), first = min((int)ceil(start), last);
    const double before = __dsub_rn((double)first, start), behind = __dsub_rn(stop, (double)last);
    const bool has_head = before > 1e-3, has_tail = behind > 1e-3;
    const float head = (float)__ddiv_rn(before, cell), body = (float)__ddiv_rn(1.0, cell);
    const float tail = (float)__ddiv_rn(fmin(fmin(behind, 1.0), cell), cell);
    Tap out = {first - has_head, last - first + has_head + has_tail, source - 1};
    out.weight[0] = has_head ? head : first < last ? body : tail;
    out.weight[1] = body;
    out.weight[2] = has_tail ? tail : body;
    return out;
}

__device__ Tap tap(int at, int source, int wanted, bool across, int manner) {
#if METHOD == 3
    return cubic_tap(at, source, wanted);
#else
    if (manner == BETWEEN) return between_tap(at, source, wanted, across);
    if (manner == COVER) return cover_tap(at, source, wanted);
    const int each = (int)rint(scale_of(source, wanted));
    return {at * each, each, source - 1, {0}};
#endif
}

__device__ __forceinline__ Column column_of(const Tap& tap, int size, int step) { return tap; }

__device__ __forceinline__ Row row_of(const Tap& tap, int pitch) { return {tap, pitch}; }

__device__ __forceinline__ int level_of(float number) { return min(max(__float2int_rn(number), 0), 255); }

__device__ __forceinline__ int cubic(const u8* plane, const Column& x, const Row& y, int step) {
    float sum = 0;
#pragma unroll
    for (int r = 3; r >= 0; --r) {
        const u8* row = plane + (long long)min(max(y.tap.first + r, 0), y.tap.last) * y.pitch;
        int wide = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) wide += row[min(max(x.first + k, 0), x.last) * step] * (int)x.weight[k];
        sum = __fadd_rn(sum, __fmul_rn((float)wide, y.tap.weight[r] * (1.0f / 4194304)));
    }
    return level_of(sum);
}

__device__ __forceinline__ int between(const u8* plane, const Column& x, const Row& y, int step) {
    int wide[2];
    for (int r = 0; r < 2; ++r) {
        const u8* row = plane + (long long)min(y.tap.first + r, y.tap.last) * y.pitch;
        const int far = (int)x.weight[1];
        wide[r] = row[x.first * step] * (2048 - far) + row[min(x.first + 1, x.last) * step] * far;
    }
    const int far = (int)y.tap.weight[1];
    return (((wide[0] >> 4) * (2048 - far) >> 16) + ((wide[1] >> 4) * far >> 16) + 2) >> 2;
}

__device__ __forceinline__ int box(const u8* plane, const Column& x, const Row& y, int step) {
    const bool is_paired = SOURCE == 1 && step == 2;  // OpenCV adds a half to boxes of 2 × 2, but not of two channels
    int sum = 0;
    for (int r = 0; r < y.tap.count; ++r) {
        const u8* row = plane + (long long)(y.tap.first + r) * y.pitch + x.first * step;
        for (int k = 0; k < x.count; ++k) sum += row[k * step];
    }
    if (x.count == 2 && y.tap.count == 2 && !is_paired) return (sum + 2) >> 2;
    return level_of(__fmul_rn((float)sum, __fdiv_rn(1, (float)(x.count * y.tap.count))));
}

__device__ __forceinline__ float weight_of(const Tap& tap, int k) {
    return k == 0 ? tap.weight[0] : k == tap.count - 1 ? tap.weight[2] : tap.weight[1];
}

__device__ __forceinline__ int cover(const u8* plane, const Column& x, const Row& y, int step) {
    float sum = 0;
    for (int r = 0; r < y.tap.count; ++r) {
        const u8* row = plane + (long long)(y.tap.first + r) * y.pitch + x.first * step;
        float wide = 0;
        for (int k = 0; k < x.count; ++k) wide = __fadd_rn(wide, __fmul_rn((float)row[k * step], weight_of(x, k)));
        sum = __fadd_rn(sum, __fmul_rn(wide, weight_of(y.tap, r)));
    }
    return level_of(sum);
}

// Returns four times the level, as the other methods do before rounding.
__device__ __forceinline__ u32 sample(const u8* plane, const Column& x, const Row& y, int step) {
#if METHOD == 3
    return cubic(plane, x, y, step) << 2;
#else
    if (x.count == 0) return between(plane, x, y, step) << 2;
    return (x.weight[0] == 0 ? box(plane, x, y, step) : cover(plane, x, y, step)) << 2;
#endif
}
