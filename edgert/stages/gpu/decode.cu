// Decodes detection heads: boxes that score enough, then greedy suppression; only the kept boxes go to the host.
//
// The answers are those of edgert/stages/decode: the same threshold, the same order of equal scores, and the same formula
// of overlap with the same rounding (exp may differ in its last bit).
//
// Compiled for one head at a time:
//   HEAD     0 yolox, 1 yolov5, 2 yolov8
//   COLUMNS  1: a row of memory holds one number of all boxes; 0: all numbers of one box
//   HALF     1: the numbers are float16
//   AGNOSTIC 1: boxes of different classes suppress each other, too
//   ROTATED  1: boxes are oriented, by an angle behind the classes, and compared as Gaussians (decode/shaped.py)
//
// The answer of an image is its count in 16 bytes, then `room` boxes, scores and classes, and `extras` numbers of each
// box, which follow its classes. Upright boxes are in pixels of the network, or of the image if `ways` is set.

#include "numbers.cuh"

#define CAPACITY 4096   // candidates of an image; more are an error
#define CONSIDERED 3072 // best candidates that suppression processes, at most
#define CHUNK 512       // candidates that are compared with each other at a time, a thread for each
#define WORDS (CHUNK / 32)
#define MOST (CAPACITY / CHUNK)
#define SPLIT 4         // threads that share the classes of a box
#define BOXES 64        // of a block

struct Head {
    u64 values, candidates, counts, out;
    u64 ways;                 // transforms to each image, in host memory; 0: boxes stay in pixels of the network
    u64 live;                 // numbers that may change between batches
    long long stride;         // numbers per image
    int boxes, classes, extras;
    int width;                // of the network, for the grids of yolox
    int height;
    int room, considered;     // boxes that an answer holds, and candidates looked at
    int pitch;                // bytes of one image's answer
};

struct alignas(16) Live {
    float score, iou, more;   // more: 1 + iou, rounded once; for Gaussians, the distance that corresponds to iou
    int limit;                // boxes kept
};

#if ROTATED
struct alignas(16) Box { float x, y, xx, yy; };                           // center and covariances
struct alignas(16) Rest { float xy; int kind; float score; int row; };    // during suppression, score is part
struct Candidate { Box box; Rest rest; float part, unused[3]; };          // part: a fourth of log(determinant)
#else
struct alignas(16) Box { float left, top, right, bottom; };
struct alignas(16) Rest { float area; int kind; float score; int row; };  // area is multiplied by iou, rounded
struct Candidate { Box box; Rest rest; };
struct alignas(16) Way { float across, down, right, lower, least_x, least_y, most_x, most_y; };  // factors, offsets

// Rounds as edgert/stages/crop.py does. If one number of a box is not finite, all are set to NaN.
__device__ __forceinline__ float placed(float value, float factor, float offset, float least, float most) {
    value = __fadd_rn(__fmul_rn(value, factor), offset);
    value = value < least ? least : value;
    return value > most ? most : value;
}

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) < __uint_as_float(0x7f800000u); }

__device__ __forceinline__ Box placed(const Box& box, const Way& way) {
    if (!(is_finite(box.left) && is_finite(box.top) && is_finite(box.right) && is_finite(box.bottom))) {
        const float none = __uint_as_float(0x7fc00000u);
        return {none, none, none, none};
    }
    return {placed(box.left, way.across, way.right, way.least_x, way.most_x),
            placed(box.top, way.down, way.lower, way.least_y, way.most_y),
            placed(box.right, way.across, way.right, way.least_x, way.most_x),
            placed(box.bottom, way.down, way.lower, way.least_y, way.most_y)};
}
#endif

__device__ __forceinline__ float number(const Head& head, int image, int box, int which) {
    const int each = head.classes + head.extras + (HEAD == 2 ? 4 : 5);
    const u64 at = image * head.stride + (COLUMNS ? (long long)which * head.boxes + box : (long long)box * each + which);
    return widened(((const Stored*)head.values)[at]);
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

struct Best { float score; int kind; };

// Keeps the greatest score, and the first of equals; a NaN stays.
__device__ __forceinline__ void take(Best& best, float score, int kind) {
    if (!(score <= best.score) && best.score == best.score) best.score = score, best.kind = kind;
}

// A block works on BOXES boxes, and SPLIT threads on the classes of one box.
extern "C" __global__ void __launch_bounds__(BOXES * SPLIT) candidates(const Head head) {
    __shared__ Best parts[SPLIT][BOXES];
    const Live live = *(const Live*)head.live;
    const int own = threadIdx.x % BOXES, part = threadIdx.x / BOXES, box = blockIdx.x * BOXES + own, image = blockIdx.y;
    const int first = HEAD == 2 ? 4 : 5, each = (head.classes + SPLIT - 1) / SPLIT;
    const bool is_there = box < head.boxes;
    const float objectness = HEAD == 2 || !is_there ? 1.0f : number(head, image, box, 4);
    const bool is_likely = is_there && (HEAD == 2 || objectness >= live.score);
    Best best = {-__uint_as_float(0x7f800000u), part * each};
    if (is_likely) {
#pragma unroll 10
        for (int c = part * each; c < min((part + 1) * each, head.classes); ++c)
            take(best, number(head, image, box, first + c), c);
    }
    parts[part][own] = best;
    __syncthreads();
    if (part || !is_likely) return;
    for (int i = 1; i < SPLIT; ++i) take(best, parts[i][own].score, parts[i][own].kind);
    const int kind = best.kind;
    const float score = HEAD == 2 ? best.score : __fmul_rn(best.score, objectness);
    if (!(score >= live.score)) return;
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
#if ROTATED
    const float angle = number(head, image, box, 4 + head.classes), least = 0.01f;
    width = width < least ? least : width, height = height < least ? least : height;
    const float along = width * width / 12, across = height * height / 12, cosine = cosf(angle), sine = sinf(angle);
    out->box = {x, y, along * cosine * cosine + across * sine * sine, along * sine * sine + across * cosine * cosine};
    out->rest = {(along - across) * cosine * sine, kind, score, box};
    out->part = 0.25f * logf(along * across);
#else
    const float half_width = __fmul_rn(width, 0.5f), half_height = __fmul_rn(height, 0.5f);
    const Box found = {__fsub_rn(x, half_width), __fsub_rn(y, half_height),
                       __fadd_rn(x, half_width), __fadd_rn(y, half_height)};
    const float area = __fmul_rn(__fsub_rn(found.right, found.left), __fsub_rn(found.bottom, found.top));
    out->box = found;
    out->rest = {__fmul_rn(area, live.iou), kind, score, box};
#endif
}

// Sorts different keys, rising; their number is a power of two and at least 32. With a thread for each key, two sorted
// lists are merged by the place of each key in the other list; else pairs are exchanged.
__device__ void sort(u64* keys, int count) {
    const int thread = threadIdx.x;
    if (count > CHUNK) {
#pragma unroll 1
        for (int size = 2; size <= count; size *= 2)
#pragma unroll 1
            for (int apart = size / 2; apart > 0; apart /= 2) {
                __syncthreads();
                for (int i = thread; i < count / 2; i += CHUNK) {
                    const int low = 2 * i - (i & (apart - 1)), high = low + apart;
                    const u64 a = keys[low], b = keys[high];
                    if ((a > b) == !(low & size)) keys[low] = b, keys[high] = a;
                }
            }
        __syncthreads();
        return;
    }
    const bool is_mine = thread / 32 * 32 < count;
    if (is_mine) keys[thread] = sorted(keys[thread]);
#pragma unroll 1
    for (int size = 32; size < count; size *= 2) {
        __syncthreads();
        u64 mine = 0;
        int to = (thread & ~(2 * size - 1)) + (thread & (size - 1));
        if (is_mine) {
            const u64* other = keys + ((thread & ~(size - 1)) ^ size);
            int before = 0;
            mine = keys[thread];
#pragma unroll 1
            for (int step = size / 2; step > 0; step /= 2)
                if (other[before + step - 1] < mine) before += step;
            to += before + (other[before] < mine);
        }
        __syncthreads();
        if (is_mine) keys[to] = mine;
    }
    __syncthreads();
}

// A key that is smaller for a better candidate: first by falling score, then by rising row.
__device__ __forceinline__ u64 key_of(const Rest& one, int slot) {
    return falling_key(one.score, (u32)one.row << 12 | slot);
}

// The numbers of a candidate that suppression compares, beside its box.
__device__ __forceinline__ Rest compared(const Candidate& one) {
    Rest rest = one.rest;
#if ROTATED
    rest.score = one.part;
#endif
    return rest;
}

#if ROTATED
__device__ __forceinline__ bool overlaps(const Box& a, const Rest& first, const Box& b, const Rest& second, float bound) {
    const float across = a.x - b.x, down = a.y - b.y;
    const float xx = a.xx + b.xx, yy = a.yy + b.yy, xy = first.xy + second.xy;
    const float determinant = xx * yy - xy * xy;
    const float near = xx * (down * down) + yy * (across * across) - 2 * xy * (across * down);
    const float distance = near / (4 * determinant) + 0.5f * logf(determinant / 4) - first.score - second.score;
    return (AGNOSTIC || first.kind == second.kind) & (distance < bound);
}
#else
// shared / (a + b - shared) > iou without the division, rounded as edgert/stages/decode/detection.py rounds it.
__device__ __forceinline__ bool overlaps(const Box& a, const Rest& first, const Box& b, const Rest& second, float more) {
    const float width = fmaxf(__fsub_rn(fminf(a.right, b.right), fmaxf(a.left, b.left)), 0.0f);
    const float height = fmaxf(__fsub_rn(fminf(a.bottom, b.bottom), fmaxf(a.top, b.top)), 0.0f);
    const float shared = __fmul_rn(__fmul_rn(width, height), more);
    return (AGNOSTIC || first.kind == second.kind) & (shared > __fadd_rn(first.area, second.area));
}
#endif

struct Chunk {
    Box boxes[CHUNK];
    Rest rests[CHUNK];
};

// Shared memory of the sort, and of suppression after it.
union Room {
    u64 keys[CAPACITY];
    struct {
        Chunk stay;             // kept candidates of this or of an earlier chunk, in order
        u16 order[CONSIDERED];
        u16 kept[CONSIDERED];
        int ends[WORDS];        // number of kept candidates of all chunks up to the end of a word
    } ranked;
};

// Whether any of a range of a chunk's candidates overlaps a candidate.
__device__ __forceinline__ bool any_overlaps(const Chunk& chunk, int from, int to, const Box& box, const Rest& rest, float more) {
    bool found = false;
#pragma unroll 4
    for (int i = from; i < to; ++i) found |= overlaps(chunk.boxes[i], chunk.rests[i], box, rest, more);
    return found;
}

// Returns to each thread of a word the bits of the candidates that greedy suppression keeps; `by` are the better ones
// that overlap this thread's candidate. The rule "not overlapped by a kept one" is repeated until nothing changes, which
// takes as many rounds as the longest chain.
__device__ __forceinline__ u32 left_of(u32 by, bool is_alive) {
    u32 now = __ballot_sync(~0u, is_alive), before;
    do {
        before = now;
        now = __ballot_sync(~0u, is_alive && !(by & before));
    } while (now != before);
    return now;
}

// A block works on one image, and resets the count of candidates for the next run.
extern "C" __global__ void __launch_bounds__(CHUNK) suppress(const Head head) {
    __shared__ Room room;
    __shared__ Chunk chunk;  // both together are the most shared memory that a block has by default
    const int image = blockIdx.x, thread = threadIdx.x;
    const Candidate* found = (const Candidate*)head.candidates + image * CAPACITY;
    char* out = (char*)head.out + (long long)image * head.pitch;
    Box* boxes = (Box*)(out + 16);
    float* scores = (float*)(boxes + head.room);
    int* kinds = (int*)(scores + head.room);
    float* extras = (float*)(kinds + head.room);
    const Live live = *(const Live*)head.live;
    const Candidate own = found[thread];  // loaded together with the count; it may not exist
#if !ROTATED
    Way way;
    if (head.ways) way = ((const Way*)head.ways)[image];  // early, as reading host memory takes long
#endif
    const int all = ((int*)head.counts)[image];
    chunk.boxes[thread] = own.box, chunk.rests[thread] = compared(own);
    int padded = 32;
    while (padded < all && padded < CAPACITY) padded *= 2;
    for (int i = thread; i < padded; i += CHUNK)
        room.keys[i] = i < all ? key_of(i == thread ? own.rest : found[i].rest, i) : ~0ull << 32 | i;
    __syncthreads();
    if (thread == 0) ((int*)head.counts)[image] = 0;
    if (all > CAPACITY) {
        if (thread == 0) *(int*)out = -1;
        return;
    }
    sort(room.keys, padded);
    u16 slots[MOST];
#pragma unroll
    for (int k = 0; k < MOST; ++k)
        if (k * CHUNK + thread < padded) slots[k] = (u16)(room.keys[k * CHUNK + thread] & (CAPACITY - 1));
    __syncthreads();
    u16 *order = room.ranked.order, *kept = room.ranked.kept;
    Chunk& stay = room.ranked.stay;
#pragma unroll
    for (int k = 0; k < MOST; ++k)
        if (k * CHUNK + thread < min(padded, CONSIDERED)) order[k * CHUNK + thread] = slots[k];
    __syncthreads();
    const int count = min(all, head.considered), word = thread / 32;
    const u32 lower = (1u << thread % 32) - 1;
    int before = 0;  // number of kept candidates
    for (int first = 0; first < count && before < live.limit; first += CHUNK) {
        const int size = min(CHUNK, count - first), earlier = before;
        Box box;
        Rest rest;
        u32 slot = 0;
        if (thread < size) {
            slot = order[first + thread];
            if (all <= CHUNK) box = chunk.boxes[slot], rest = chunk.rests[slot];
            else box = found[slot].box, rest = compared(found[slot]);
        }
        __syncthreads();
        if (thread < size) chunk.boxes[thread] = box, chunk.rests[thread] = rest;
        bool is_alive = thread < size;
        // Compare with the kept candidates of earlier chunks; for oriented boxes with all, as removed ones suppress, too.
        const int others = ROTATED ? first : earlier;
        for (int start = 0; start < others; start += CHUNK) {
            const int some = min(CHUNK, others - start);
            if (thread < some) {
                const Candidate& better = found[(ROTATED ? order : kept)[start + thread]];
                stay.boxes[thread] = better.box, stay.rests[thread] = compared(better);
            }
            __syncthreads();
            if (is_alive) is_alive = !any_overlaps(stay, 0, some, box, rest, live.more);
            __syncthreads();
        }
        __syncwarp();  // a warp wrote what it reads
        u32 by = 0;
        if (is_alive) {
#pragma unroll 8
            for (int i = 0; i < 32; ++i)
                by |= (u32)overlaps(chunk.boxes[32 * word + i], chunk.rests[32 * word + i], box, rest, live.more) << i;
        }
        for (int turn = 0; 32 * turn < size && before < live.limit; ++turn) {
            if (word == turn) {
                const u32 left = ROTATED ? __ballot_sync(~0u, is_alive && !(by & lower)) : left_of(by & lower, is_alive);
                const int place = before + __popc(left & lower);
                if (left >> thread % 32 & 1 && place < live.limit) {
                    kinds[place] = rest.kind, kept[place] = (u16)slot;
                    scores[place] = ROTATED ? found[slot].rest.score : rest.score;
#if ROTATED
                    boxes[place] = box;
#else
                    boxes[place] = head.ways ? placed(box, way) : box;
                    stay.boxes[place - earlier] = box, stay.rests[place - earlier] = rest;
#endif
                }
                if (thread % 32 == 0) room.ranked.ends[turn] = min(before + __popc(left), live.limit);
            }
            __syncthreads();
            const int end = room.ranked.ends[turn];
            const Chunk& better = ROTATED ? chunk : stay;
            const int from = ROTATED ? 32 * turn : before - earlier, to = ROTATED ? 32 * turn + 32 : end - earlier;
            if (word > turn && is_alive) is_alive = !any_overlaps(better, from, to, box, rest, live.more);
            before = end;
        }
        __syncthreads();
        for (int i = thread + earlier * head.extras; i < before * head.extras; i += CHUNK) {
            const int last = i % head.extras, behind = head.classes + (HEAD == 2 ? 4 : 5);
            const int which = ROTATED ? (last < 4 ? last : behind) : behind + last;  // an oriented box, then its angle
            extras[i] = number(head, image, found[kept[i / head.extras]].rest.row, which);
        }
    }
    if (thread == 0) *(int*)out = before;
}
