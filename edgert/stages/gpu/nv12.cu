// Converts a BGR image to NV12 for an encoder, as OpenCV's BGR2YUV_I420 does (modules/imgproc/src/color_yuv.simd.hpp,
// RGB8toYUV420pInvoker): BT.601, limited range, in 20-bit fixed point, chroma of each block's first pixel.

typedef unsigned char u8;
typedef unsigned long long u64;

struct Image {
    u64 bgr, luma, chroma;
    int bgr_pitch, luma_pitch, chroma_pitch;
    int width, height;                // even
};

__device__ __forceinline__ u8 level(const u8* pixel, int blue, int green, int red, int base) {
    return (u8)min(max((blue * pixel[0] + green * pixel[1] + red * pixel[2] + (base << 20) + (1 << 19)) >> 20, 0), 255);
}

// A thread converts 2 x 2 pixels.
extern "C" __global__ void __launch_bounds__(256) nv12(const Image image) {
    const int x = 2 * (blockIdx.x * 32 + threadIdx.x), y = 2 * (blockIdx.y * 8 + threadIdx.y);
    if (x >= image.width || y >= image.height) return;
    const u8* first = (const u8*)image.bgr + (long long)y * image.bgr_pitch + 3 * x;
    for (int row = 0; row < 2; ++row) {
        const u8* pixel = first + row * image.bgr_pitch;
        u8* luma = (u8*)image.luma + (long long)(y + row) * image.luma_pitch + x;
        luma[0] = level(pixel, 102760, 528482, 269484, 16);
        luma[1] = level(pixel + 3, 102760, 528482, 269484, 16);
    }
    u8* chroma = (u8*)image.chroma + (long long)(y / 2) * image.chroma_pitch + x;
    chroma[0] = level(first, 460324, -305135, -155188, 128);
    chroma[1] = level(first, -74448, -385875, 460324, 128);
}
