// A driver that runs nothing and remembers its last launch: what Triton's own launcher asks of CUDA, seen without a GPU.
#include <string.h>

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  void *attributes;
  unsigned count;
} Configuration;

static int sizes[64], parameters;
static unsigned char seen[1024];
static unsigned shape[6];
static void *stream;
static long launches;

void stub_expect(int count, const int *bytes) {
  parameters = count;
  memcpy(sizes, bytes, count * sizeof(int));
}
const unsigned char *stub_seen(void) { return seen; }
const unsigned *stub_shape(void) { return shape; }
void *stub_stream(void) { return stream; }
long stub_launches(void) { return launches; }

int cuLaunchKernelEx(const Configuration *configuration, void *kernel, void **arguments, void **extra) {
  (void)kernel, (void)extra;
  memcpy(shape, configuration->grid, sizeof(shape));
  stream = configuration->stream;
  unsigned char *to = seen;
  for (int i = 0; i < parameters; ++i) {
    memcpy(to, arguments[i], sizes[i]);
    to += sizes[i];
  }
  ++launches;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 200 * 1024;
  return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  *value = attribute == 0 ? 1024 : 0;
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  (void)image;
  *module = seen;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module, (void)name;
  *function = shape;
  return 0;
}
int cuCtxGetCurrent(void **context) {
  *context = seen;
  return 0;
}
int cuGetErrorString(int error, const char **text) {
  (void)error;
  *text = "the driver that runs nothing";
  return 0;
}

#define NOTHING(name) \
  int name(void) { return 0; }
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetCount)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuDriverGetVersion)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuInit)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuPointerGetAttribute)
NOTHING(cuStreamIsCapturing)
NOTHING(cuTensorMapEncodeIm2col)
NOTHING(cuTensorMapEncodeTiled)
