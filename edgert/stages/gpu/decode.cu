// Detection heads on the GPU: what scores enough, decoded; then greedy suppression; only what survives goes to the host.
//
// The answers are those of edgert/stages/decode: the same floor, the same order of equal scores, the same formula of
// overlap in the same roundings (exp may differ in its last bit).
//
// Compiled for one head at a time:
//   HEAD     0 yolox, 1 yolov5, 2 yolov8
//   COLUMNS  1: a row of memory holds one number of all boxes; 0: all numbers of one box
//   HALF     1: the numbers are float16

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define CAPACITY 4096  // candidates of a image; more are for the host to decode
#define THREADS 1024

struct Head {
    u64 values, candidates, sorted, counts, out;
    long long stride;         // numbers per image
    int boxes, classes;
    int width;                // of the network, for the grids of yolox
    int height;
    int limit, considered;    // boxes kept, and candidates looked at
    float score, iou, more;   // the last is 1 + iou, rounded once
};

struct Candidate { float box[4]; float score; int kind; int row; int unused; };
struct Survivor { float box[4]; float score; int kind; };

__device__ __forceinline__ float number(const Head& head, int image, int box, int which) {
    const int each = head.classes + (HEAD == 2 ? 4 : 5);
    const u64 at = image * head.stride + (COLUMNS ? (long long)which * head.boxes + box : (long long)box * each + which);
#if HALF
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(((const u16*)head.values)[at]));
    return wide;
#else
    return ((const float*)head.values)[at];
#endif
}

#if HEAD == 0
struct Cell { float x, y, stride; };

__device__ Cell cell_of(const Head& head, int box) {
    int stride = 8, columns, cells;
    for (;; stride *= 2) {
        columns = (head.width + stride - 1) / stride;
        cells = columns * ((head.height + stride - 1) / stride);
        if (box < cells || stride == 32) break;
        box -= cells;
    }
    return {(float)(box % columns), (float)(box / columns), (float)stride};
}
#endif

// One thread per box.
extern "C" __global__ void __launch_bounds__(256) candidates(const Head head) {
    const int box = blockIdx.x * 256 + threadIdx.x, image = blockIdx.y;
    if (box >= head.boxes) return;
    const int first = HEAD == 2 ? 4 : 5;
    const float objectness = HEAD == 2 ? 1.0f : number(head, image, box, 4);
    if (!(objectness >= head.score) && HEAD != 2) return;
    float best = number(head, image, box, first);
    int kind = 0;
    for (int c = 1; c < head.classes; ++c) {
        float next = number(head, image, box, first + c);
        if (next > best) { best = next; kind = c; }
    }
    const float score = HEAD == 2 ? best : __fmul_rn(best, objectness);
    if (!(score >= head.score)) return;
    const int slot = atomicAdd((int*)head.counts + image, 1);
    if (slot >= CAPACITY) return;
    float x = number(head, image, box, 0), y = number(head, image, box, 1);
    float width = number(head, image, box, 2), height = number(head, image, box, 3);
#if HEAD == 0
    const Cell cell = cell_of(head, box);
    x = __fmul_rn(__fadd_rn(x, cell.x), cell.stride);
    y = __fmul_rn(__fadd_rn(y, cell.y), cell.stride);
    width = __fmul_rn(expf(width), cell.stride);
    height = __fmul_rn(expf(height), cell.stride);
#endif
    Candidate* out = (Candidate*)head.candidates + image * CAPACITY + slot;
    const float half_width = __fmul_rn(width, 0.5f), half_height = __fmul_rn(height, 0.5f);
    out->box[0] = __fsub_rn(x, half_width);
    out->box[1] = __fsub_rn(y, half_height);
    out->box[2] = __fadd_rn(x, half_width);
    out->box[3] = __fadd_rn(y, half_height);
    out->score = score;
    out->kind = kind;
    out->row = box;
}

// Ascending, of a power of two of keys.
__device__ void sort(u64* keys, int count) {
    for (int size = 2; size <= count; size *= 2)
        for (int apart = size / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < count / 2; i += THREADS) {
                const int low = 2 * i - (i & (apart - 1)), high = low + apart;
                const bool rising = !(low & size);
                const u64 a = keys[low], b = keys[high];
                if ((a > b) == rising) { keys[low] = b; keys[high] = a; }
            }
        }
    __syncthreads();
}

__device__ __forceinline__ float area(const Candidate& one) {
    return __fmul_rn(__fsub_rn(one.box[2], one.box[0]), __fsub_rn(one.box[3], one.box[1]));
}

// shared / (a + b - shared) > iou without the division, rounded as edgert/stages/decode/nms.py rounds it.
__device__ __forceinline__ bool overlaps(const Candidate& a, const Candidate& b, float iou, float more) {
    if (a.kind != b.kind) return false;
    float width = fmaxf(__fsub_rn(fminf(a.box[2], b.box[2]), fmaxf(a.box[0], b.box[0])), 0.0f);
    float height = fmaxf(__fsub_rn(fminf(a.box[3], b.box[3]), fmaxf(a.box[1], b.box[1])), 0.0f);
    float shared = __fmul_rn(__fmul_rn(width, height), more);
    return shared > __fadd_rn(__fmul_rn(area(a), iou), __fmul_rn(area(b), iou));
}

// Of 32 candidates in a row, those that no better one of them overlaps, as bits; by the threads of one warp.
__device__ u32 choose(const Head& head, const Candidate* ranked, const u8* gone, int first, int count) {
    const int lane = threadIdx.x;
    bool alive = first + lane < count && !gone[first + lane];
    const Candidate mine = ranked[min(first + lane, count - 1)];
    for (int better = 0; better < 32; ++better) {
        if (!(__ballot_sync(~0u, alive) >> better & 1)) continue;
        Candidate other;
        for (int side = 0; side < 4; ++side) other.box[side] = __shfl_sync(~0u, mine.box[side], better);
        other.kind = __shfl_sync(~0u, mine.kind, better);
        if (alive && lane > better && overlaps(other, mine, head.iou, head.more)) alive = false;
    }
    return __ballot_sync(~0u, alive);
}

// One block per image. Leaves the count of candidates at 0, ready for the next.
extern "C" __global__ void __launch_bounds__(THREADS) suppress(const Head head) {
    __shared__ u64 keys[CAPACITY];
    __shared__ u8 gone[CAPACITY];
    __shared__ u32 winners;
    const int image = blockIdx.x;
    const Candidate* found = (const Candidate*)head.candidates + image * CAPACITY;
    Candidate* ranked = (Candidate*)head.sorted + image * CAPACITY;
    int* out = (int*)(head.out + image * (16 + head.limit * (long long)sizeof(Survivor)));
    Survivor* survivors = (Survivor*)(out + 4);
    const int all = ((int*)head.counts)[image];
    __syncthreads();
    if (threadIdx.x == 0) ((int*)head.counts)[image] = 0;
    if (all > CAPACITY) {
        if (threadIdx.x == 0) out[0] = -1;
        return;
    }
    int room = 2;
    while (room < all) room *= 2;
    for (int i = threadIdx.x; i < room; i += THREADS) {
        const u64 rank = (u64)(u32)~__float_as_uint(i < all ? found[i].score : 0.0f) << 32;
        keys[i] = i < all ? rank | (u64)found[i].row << 12 | i : ~0ull;
        gone[i] = 0;
    }
    sort(keys, room);
    const int count = min(all, head.considered);
    for (int i = threadIdx.x; i < count; i += THREADS) ranked[i] = found[keys[i] & (CAPACITY - 1)];
    __syncthreads();
    int kept = 0;
    for (int first = 0; first < count && kept < head.limit; first += 32) {
        if (threadIdx.x < 32) {
            const u32 chosen = choose(head, ranked, gone, first, count);
            if (threadIdx.x == 0) winners = chosen;
        }
        __syncthreads();
        const u32 chosen = winners;
        if (threadIdx.x < 32 && chosen >> threadIdx.x & 1) {
            const int place = kept + __popc(chosen & ((1u << threadIdx.x) - 1));
            const Candidate& one = ranked[first + threadIdx.x];
            if (place < head.limit) {
                for (int side = 0; side < 4; ++side) survivors[place].box[side] = one.box[side];
                survivors[place].score = one.score;
                survivors[place].kind = one.kind;
            }
        }
        kept = min(kept + __popc(chosen), head.limit);
        for (int j = first + 32 + threadIdx.x; j < count; j += THREADS) {
            if (gone[j]) continue;
            const Candidate other = ranked[j];
            for (u32 left = chosen; left; left &= left - 1)
                if (overlaps(ranked[first + __ffs(left) - 1], other, head.iou, head.more)) { gone[j] = 1; break; }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = kept;
}
