/* The parts of a Jetson's nvbufsurface.h that doubles need, laid out as there. */
#include <stdint.h>

typedef struct { uint32_t num, width[4], height[4], pitch[4], offset[4], size[4], bytes[4]; void *reserved[16]; } Planes;
#ifdef DATA_FIRST  /* as in the header that isaac_ros_compression brings; else as in DeepStream's reference */
typedef struct { void *data, *external, *mipmap; uint8_t reserved[64]; } CudaBuffer;
#else
typedef struct { void *base, *data, *external, *mipmap; uint8_t reserved[64]; } CudaBuffer;
#endif
typedef struct { void *addr[4]; void *egl; void *nvmm; CudaBuffer *cuda; void *reserved[2]; } Mapped;
typedef struct {
    uint32_t width, height, pitch; int format, layout; uint64_t desc; uint32_t size; void *data;
    Planes planes; Mapped mapped; void *reserved[4];
} Params;
typedef struct { uint32_t gpu, batch, filled; _Bool contiguous; int memory; Params *list; void *reserved[4]; } Surface;
enum { CUDA_DEVICE = 2, SURFACE_ARRAY = 4 };
