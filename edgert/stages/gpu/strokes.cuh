// Smooth lines and circles as OpenCV draws them, blend for blend: modules/imgproc/src/drawing.cpp, ThickLine, EllipseEx,
// FillConvexPoly and LineAA. A thick line is a polygon of four corners with circles at its ends, which are polygons, too.
// The edges of a polygon are drawn smoothly, one after another, then its inside is filled. So a pixel is blended once for
// each edge that passes it, and rounded each time; a single blend of its coverage would differ by up to five levels.

#define ONE 65536                     // of a pixel, in the numbers here
#define MOST_EDGES 30                 // of a segment: four, and two circles of thirteen

struct Edge {
    int first, count;                 // along the longer axis: its start and its number of steps
    int across, step;                 // along the other axis: its start and its movement per step
    int slope, near, far;             // its slope, and how far its ends reach into their pixels
    int top, bottom, x, dx;           // rows in which it bounds the inside; its place and its movement per row
    int flags;
};
enum { TALL = 1, LAST = 2 };          // steps go down, not across; the polygon ends here

struct Corner { long long x, y; };

struct Line {                         // as display_list.py packs it
    u64 points;                       // offset of its points; (N, 2) int in sixteenths of a pixel
    u32 item, color, edges;           // item, edges: numbers of its first item and its first edge
    int pieces[9];                    // three times first, last, thickness; negative: radius of a circle in sixteenths
};

struct Lines {
    u64 lines, points, items, edges, lookups;
    int width, height;                // of the image
};

__device__ __forceinline__ bool is_outside(long long at, long long end) { return at < 0 || at > end; }

// Cuts an edge to the image; returns false if no part of it is inside.
__device__ bool clip(Corner& a, Corner& b, long long right, long long bottom) {
    for (int side = 0; side < 2; ++side) {  // rows, then columns
        const long long end = side ? right : bottom;
        if (!side && ((a.x < 0 && b.x < 0) || (a.x > right && b.x > right))) return false;
        const long long from = side ? a.x : a.y, to = side ? b.x : b.y;
        if ((from < 0 && to < 0) || (from > end && to > end)) return false;
        Corner* ends[2] = {&a, &b};
        for (int i = 0; i < 2; ++i) {
            Corner& one = *ends[i];
            const long long at = side ? one.x : one.y;
            if (!is_outside(at, end)) continue;
            const long long edge = at < 0 ? 0 : end;
            if (side) {
                one.y += (edge - one.x) * (b.y - a.y) / (b.x - a.x);
                one.x = edge;
            } else {
                one.x += (edge - one.y) * (b.x - a.x) / (b.y - a.y);
                one.y = edge;
            }
        }
    }
    return true;
}

__device__ void smooth_edge(Edge& out, Corner a, Corner b, const Lines& job) {
    out.count = -1, out.flags = 0, out.top = out.bottom = 0;
    if (!clip(a, b, (long long)job.width * ONE - 1, (long long)job.height * ONE - 1)) return;
    long long wide = b.x - a.x, high = b.y - a.y;
    const bool is_tall = (wide < 0 ? -wide : wide) <= (high < 0 ? -high : high);
    if (is_tall) {                    // from here on, x is the longer axis
        a = {a.y, a.x}, b = {b.y, b.x};
        const long long other = wide;
        wide = high, high = other;
    }
    if (wide < 0) {
        const Corner other = a;
        a = b, b = other, wide = -wide, high = -high;
    }
    const int step = (int)(high * ONE / (wide | 1));
    b.x += ONE;
    out.first = (int)(a.x >> 16), out.count = (int)((b.x >> 16) - (a.x >> 16));
    out.across = (int)(a.y + ((step * -(a.x & (ONE - 1))) >> 16) + ONE / 2), out.step = step;
    const int steep = ((step >> 11) & 63) ^ (step < 0 ? 63 : 0);
    out.slope = steep & 32 ? 256 : ((const u8*)job.lookups)[64 + steep];
    out.near = (int)(a.x >> 9) & 120, out.far = (int)(b.x >> 9) & 120, out.flags = is_tall ? TALL : 0;
}

// Rows are rounded to pixels, and all edges of a polygon get the rows that they bound. In the last row of the polygon or
// the image, the edges of the row before are used.
__device__ int polygon(Edge* out, const Corner* corners, int count, const Lines& job) {
    int highest = 1 << 30, lowest = -(1 << 30);
    for (int i = 0; i < count; ++i) {
        const int row = (int)((corners[i].y + ONE / 2) >> 16);
        highest = min(highest, row), lowest = max(lowest, row);
    }
    const int last = min(lowest, job.height - 1);
    for (int i = 0; i < count; ++i) {
        const Corner &from = corners[(i + count - 1) % count], &to = corners[i];
        smooth_edge(out[i], from, to, job);
        const bool is_down = from.y <= to.y;
        const Corner &upper = is_down ? from : to, &lower = is_down ? to : from;
        const int top = (int)((upper.y + ONE / 2) >> 16), bottom = (int)((lower.y + ONE / 2) >> 16);
        if (top < bottom && (top < last || highest == last)) {
            out[i].top = top, out[i].bottom = bottom < last ? bottom : last + 1, out[i].x = (int)upper.x;
            out[i].dx = (int)(((lower.x - upper.x) * 2 + (bottom - top)) / (2 * (bottom - top)));
        }
    }
    out[count - 1].flags |= LAST;
    return count;
}

__device__ __forceinline__ double sine(int thirtieths) {  // of 30 degrees, 0 to 15
    const float quarter[4] = {0.0f, 0.5f, 0.8660254f, 1.0f};
    const int at = thirtieths % 12, half = at % 6;
    const float found = quarter[half <= 3 ? half : 6 - half];
    return at < 6 ? found : -found;
}

__device__ int circle(Edge* out, Corner center, int radius, const Lines& job) {
    Corner corners[13];
    const int each = (radius + ONE / 2) >> 16 < 3 ? 3 : 1;
    int count = 0;
    for (int at = 0; at <= 12; at += each, ++count) {
        corners[count].x = __double2ll_rn(center.x + radius * sine(at + 3));
        corners[count].y = __double2ll_rn(center.y + radius * sine(at));
    }
    return polygon(out, corners, count, job);
}

__device__ int segment(Edge* out, Corner a, Corner b, int thickness, bool is_first, const Lines& job) {
    if (thickness <= 1) {
        smooth_edge(out[0], a, b, job);
        out[0].flags |= LAST;
        return 1;
    }
    const double across = (a.x - b.x) / 65536.0, down = (b.y - a.y) / 65536.0;
    const double square = __dadd_rn(__dmul_rn(across, across), __dmul_rn(down, down));
    const int radius = thickness * (ONE / 2);
    int count = 0;
    if (square > 2.220446049250313e-16) {
        const double share = __ddiv_rn((double)(radius + (thickness & 1) * (ONE / 2)), sqrt(square));
        const long long x = __double2ll_rn(__dmul_rn(down, share)), y = __double2ll_rn(__dmul_rn(across, share));
        const Corner corners[4] = {{a.x + x, a.y + y}, {a.x - x, a.y - y}, {b.x - x, b.y - y}, {b.x + x, b.y + y}};
        count = polygon(out, corners, 4, job);
    }
    if (is_first) count += circle(out + count, a, radius, job);
    return count + circle(out + count, b, radius, job);
}

// A block works on one line, and a thread on one of its segments: it writes the edges, and the item that paints them.
extern "C" __global__ void __launch_bounds__(32) strokes(ARGUMENT Lines job) {
    const Line& line = ((const Line*)job.lines)[blockIdx.x];
    const int* points = (const int*)(job.points + line.points);
    int before = 0;
    for (int piece = 0; piece < 9; piece += 3) {
        const int first = line.pieces[piece], thickness = line.pieces[piece + 2];
        const int count = thickness < 0 ? 1 : line.pieces[piece + 1] - first;
        for (int i = threadIdx.x; i < count; i += 32) {
            const int* from = points + 2 * (first + i);
            const int* to = thickness < 0 ? from : from + 2;
            const Corner a = {from[0] * 4096ll, from[1] * 4096ll}, b = {to[0] * 4096ll, to[1] * 4096ll};
            Edge* edges = (Edge*)job.edges + line.edges + (before + i) * MOST_EDGES;
            Item& item = ((Item*)job.items)[line.item + before + i];
            const int reach = (thickness < 0 ? -thickness / 16 : thickness / 2) + 3;
            item.left = max(min(from[0], to[0]) / 16 - reach, 0), item.top = max(min(from[1], to[1]) / 16 - reach, 0);
            item.right = min(max(from[0], to[0]) / 16 + reach + 1, job.width);
            item.bottom = min(max(from[1], to[1]) / 16 + reach + 1, job.height);
            item.kind = STROKE, item.color = line.color, item.at = (u64)edges;
            item.q[0] = thickness < 0 ? circle(edges, a, -thickness * 4096, job)
                                      : segment(edges, a, b, thickness, i == 0, job);
        }
        before += max(count, 0);
    }
}

__device__ __forceinline__ void blend(int* bgr, u32 color, int part) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const int wanted = color >> 8 * c & 255;
        bgr[c] += ((wanted - bgr[c]) * part + 127) >> 8;
        bgr[c] += ((wanted - bgr[c]) * part + 127) >> 8;
    }
}

// The strength of an edge `step` steps from its start and `rest` steps from its end, in 256ths.
__device__ __forceinline__ int strength(const Edge& edge, int step, int rest) {
    const int gap = edge.far - edge.near;
    if (step == 0 && rest == 0) return 0;
    if (step == 0) return (rest == 1 ? ((gap & 120) | 4) * edge.slope : ((120 - edge.near) | 4) * edge.slope) >> 8 & 511;
    if (step == 1 && rest < 2) return (((rest ? gap + 128 : gap & 120) | 4) * edge.slope) >> 8 & 511;
    if (step == 1) return (((120 - edge.near) | 4) * edge.slope + (edge.slope << 7)) >> 8 & 511;
    if (rest == 0) return ((edge.far | 4) * edge.slope) >> 8 & 511;
    if (rest == 1) return ((edge.far | 4) * edge.slope + (edge.slope << 7)) >> 8 & 511;
    return edge.slope;
}

__device__ void paint_stroke(const Item& item, const u8* filter, int x, int y, int* bgr) {
    const Edge* edges = (const Edge*)item.at;
    int low = 0x7fffffff, high = -0x7fffffff;
    for (int n = 0; n < (int)item.q[0]; ++n) {
        const Edge& edge = edges[n];
        const bool is_tall = edge.flags & TALL;
        const int step = (is_tall ? y : x) - edge.first;
        if (step >= 0 && step <= edge.count) {
            const int at = edge.across + step * edge.step, offset = (is_tall ? x : y) - (at >> 16) + 1;
            if ((u32)offset < 3) {
                const int rest = at >> 11 & 31, place = offset == 0 ? rest + 32 : offset == 1 ? rest : 63 - rest;
                blend(bgr, item.color, strength(edge, step, edge.count - step) * filter[place] >> 8 & 255);
            }
        }
        if (y >= edge.top && y < edge.bottom) {
            const int bound = edge.x + (y - edge.top) * edge.dx;
            low = min(low, bound), high = max(high, bound);
        }
        if (edge.flags & LAST) {
            if (low <= high && x >= (low + ONE - 1) >> 16 && x <= high >> 16)
#pragma unroll
                for (int c = 0; c < 3; ++c) bgr[c] = item.color >> 8 * c & 255;
            low = 0x7fffffff, high = -0x7fffffff;
        }
    }
}
