/* The questions that edgert asks the CUDA driver itself: one integrated GPU. Nothing here computes.
   Names and numbers: https://docs.nvidia.com/cuda/cuda-driver-api/ */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags) { return 0; }
EXPORT int cuDriverGetVersion(int *version) { *version = CUDA; return 0; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
EXPORT int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_DOUBLE"; return 0; }
EXPORT int cuGetErrorString(int code, const char **text) { *text = "not in the double of the driver"; return 0; }
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) { return 801; } /* CUDA_ERROR_NOT_SUPPORTED */
EXPORT int cuCtxGetDevice(int *device) { *device = 0; return 0; }
EXPORT int cuMemGetInfo_v2(unsigned long *free, unsigned long *total) { *total = 8ul << 30; *free = 4ul << 30; return 0; }
EXPORT int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 8ul << 30; return 0; }
EXPORT int cuDeviceGetName(char *name, int size, int device) {
  const char *own = "double of a GPU";
  int at = 0;
  for (; own[at] && at < size - 1; at++) name[at] = own[at];
  name[at] = 0;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 18: case 19: *value = 1; break; /* integrated, maps host memory */
    case 75: *value = CAPABILITY / 10; break;
    case 76: *value = CAPABILITY % 10; break;
    default: *value = 0;
  }
  return 0;
}
