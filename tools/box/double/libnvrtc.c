/* NVIDIA's run-time compiler in a box: machine code is the options that a kernel was compiled with.
   Names: https://docs.nvidia.com/cuda/nvrtc/ */
#include <stdlib.h>
#include <string.h>
#define EXPORT __attribute__((visibility("default")))

typedef struct { char text[4096]; } Program;

EXPORT int nvrtcVersion(int *major, int *minor) { *major = CUDA / 1000; *minor = CUDA % 1000 / 10; return 0; }
EXPORT const char *nvrtcGetErrorString(int code) { return "not in the double of NVRTC"; }
EXPORT int nvrtcCreateProgram(Program **made, const char *source, const char *name, int count, void *texts, void *names) {
  *made = calloc(1, sizeof(Program));
  return 0;
}
EXPORT int nvrtcCompileProgram(Program *program, int count, const char **options) {
  for (int n = 0; n < count; n++) {
    strncat(program->text, options[n], sizeof program->text - strlen(program->text) - 2);
    strcat(program->text, " ");
  }
  return 0;
}
EXPORT int nvrtcDestroyProgram(Program **program) { free(*program); *program = NULL; return 0; }
EXPORT int nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = 1; return 0; }
EXPORT int nvrtcGetProgramLog(Program *program, char *text) { *text = 0; return 0; }
EXPORT int nvrtcGetCUBINSize(Program *program, size_t *size) { *size = strlen(program->text); return 0; }
EXPORT int nvrtcGetCUBIN(Program *program, char *text) { memcpy(text, program->text, strlen(program->text)); return 0; }
