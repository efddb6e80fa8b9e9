/* Doubles of a Jetson's libnvbufsurface (built with -DSURFACE, and -DCUDA_BUFFERS where it knows those; -DCUDA_BUFFERS=0
 * where it refuses them, as an Orin's does; -DDATA_FIRST for the other layout of them) and of libcuda's calls for EGL images. They count, refuse what the real ones
 * refuse, and fail at the call that NVMM_FAILS names: "NvBufSurfaceMapEglImage:3" is the third, ":0" is every one. With
 * NVMM_COUNTS they print their counts at the end. Structs as in nvbufsurface.h and cudaEGL.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvbufsurface.h"

typedef struct { uint32_t gpu, width, height, size; _Bool contiguous; int format, layout, memory; } Wanted;
typedef struct { Params *params; int registered; } Image;
typedef struct { void *planes[3]; uint32_t width, height, depth, pitch, count, channels; int type, color, format; } Frame;

#define HANDLE 0xE47 /* of the host; nothing that a kernel may read */

static int called(const char *name, int *count) {
    const char *failing = getenv("NVMM_FAILS");
    size_t length = strlen(name);
    ++*count;
    if (failing && !strncmp(failing, name, length) && failing[length] == ':') {
        int which = atoi(failing + length + 1);
        return which == 0 || which == *count;
    }
    return 0;
}
#define COUNTED(name) \
    int count_##name = 0; \
    __attribute__((destructor)) static void print_##name(void) { \
        if (getenv("NVMM_COUNTS")) fprintf(stderr, "%s: %d\n", #name, count_##name); \
    }
#define CALLED(name) called(#name, &count_##name)

#ifdef SURFACE
COUNTED(NvBufSurfaceFromFd) COUNTED(NvBufSurfaceMapEglImage) COUNTED(NvBufSurfaceUnMapEglImage)
COUNTED(NvBufSurfaceMapCudaBuffer) COUNTED(NvBufSurfaceUnMapCudaBuffer)

int NvBufSurfaceFromFd(int fd, void **surface) { (void)fd; (void)surface; CALLED(NvBufSurfaceFromFd); return -1; }

COUNTED(NvBufSurfaceCreate) COUNTED(NvBufSurfaceDestroy)

/* One pitch-linear NV12 image. NVMM_MEMORY is the memory type that it says it has, by default a surface array. */
int NvBufSurfaceCreate(Surface **made, uint32_t batch, Wanted *wanted) {
    const char *memory = getenv("NVMM_MEMORY");
    if (CALLED(NvBufSurfaceCreate) || batch != 1 || wanted->format != 6 || wanted->layout || wanted->memory) return -1;
    Surface *surface = calloc(1, sizeof(Surface));
    Params *params = surface->list = calloc(1, sizeof(Params));
    surface->batch = 1;
    surface->memory = memory ? atoi(memory) : SURFACE_ARRAY;
    params->width = wanted->width;
    params->height = wanted->height;
    params->pitch = (wanted->width + 255) & ~255u;
    params->format = wanted->format;
    params->size = params->pitch * wanted->height * 3 / 2;
    params->data = calloc(1, params->size);
    params->desc = (uintptr_t)params->data;
    params->planes.num = 2;
    params->planes.pitch[0] = params->planes.pitch[1] = params->pitch;
    params->planes.offset[1] = params->pitch * wanted->height;
    *made = surface;
    return 0;
}

int NvBufSurfaceDestroy(Surface *surface) {
    if (CALLED(NvBufSurfaceDestroy) || surface->list->mapped.egl || surface->list->mapped.cuda) return -1;
    free(surface->list->data);
    free(surface->list);
    free(surface);
    return 0;
}

int NvBufSurfaceMapEglImage(Surface *surface, int index) {
    Mapped *mapped = &surface->list[index].mapped;
    if (CALLED(NvBufSurfaceMapEglImage) || surface->memory != SURFACE_ARRAY || mapped->egl) return -1;
    Image *image = calloc(1, sizeof(Image));
    image->params = &surface->list[index];
    mapped->egl = image;
    return 0;
}

int NvBufSurfaceUnMapEglImage(Surface *surface, int index) {
    Mapped *mapped = &surface->list[index].mapped;
    Image *image = mapped->egl;
    if (CALLED(NvBufSurfaceUnMapEglImage) || !image || image->registered) return -1;
    free(image);
    mapped->egl = NULL;
    return 0;
}

#ifdef CUDA_BUFFERS
int NvBufSurfaceMapCudaBuffer(Surface *surface, int index) {
    Params *params = &surface->list[index];
    if (CALLED(NvBufSurfaceMapCudaBuffer) || !CUDA_BUFFERS || surface->memory != SURFACE_ARRAY || params->mapped.cuda) return -1;
    params->mapped.cuda = calloc(1, sizeof(CudaBuffer));
    params->mapped.cuda->data = (void *)(uintptr_t)params->desc;
    params->mapped.cuda->external = (void *)HANDLE;
#ifndef DATA_FIRST
    params->mapped.cuda->base = (char *)params->mapped.cuda->data - 64; /* the data begin behind it, on a page */
#endif
    return 0;
}

int NvBufSurfaceUnMapCudaBuffer(Surface *surface, int index) {
    Params *params = &surface->list[index];
    if (CALLED(NvBufSurfaceUnMapCudaBuffer) || !params->mapped.cuda) return -1;
    free(params->mapped.cuda);
    params->mapped.cuda = NULL;
    return 0;
}
#endif
#else
COUNTED(cuGraphicsEGLRegisterImage) COUNTED(cuGraphicsUnregisterResource)
COUNTED(cuGraphicsResourceGetMappedEglFrame) COUNTED(cuGraphicsMapResources) COUNTED(cuGraphicsUnmapResources)

int cuGraphicsEGLRegisterImage(void **resource, Image *image, unsigned flags) {
    (void)flags;
    if (CALLED(cuGraphicsEGLRegisterImage) || !image || image->registered) return 999;
    image->registered = 1;
    *resource = image;
    return 0;
}

int cuGraphicsUnregisterResource(Image *resource) {
    if (CALLED(cuGraphicsUnregisterResource) || !resource || !resource->registered) return 400;
    resource->registered = 0;
    return 0;
}

int cuGraphicsResourceGetMappedEglFrame(Frame *frame, Image *resource, unsigned index, unsigned level) {
    (void)index; (void)level;
    if (CALLED(cuGraphicsResourceGetMappedEglFrame) || !resource->registered) return 400;
    memset(frame, 0, sizeof(Frame));
    for (uint32_t n = 0; n < resource->params->planes.num; n++)
        frame->planes[n] = (void *)(uintptr_t)(resource->params->desc + resource->params->planes.offset[n]);
    frame->count = resource->params->planes.num;
    frame->type = 1;
    return 0;
}

/* Only the memory's type is asked for; a handle of the host has none. */
COUNTED(cuPointerGetAttribute)
int cuPointerGetAttribute(unsigned *value, int attribute, uint64_t address) {
    if (CALLED(cuPointerGetAttribute) || attribute != 2 || address <= HANDLE) return 1;
    *value = 2;
    return 0;
}

/* For EGL images the real ones fail, so nobody may call them. */
int cuGraphicsMapResources(unsigned n, void *r, void *s) { (void)n; (void)r; (void)s; CALLED(cuGraphicsMapResources); return 999; }
int cuGraphicsUnmapResources(unsigned n, void *r, void *s) { (void)n; (void)r; (void)s; CALLED(cuGraphicsUnmapResources); return 999; }
#endif
