// The part of the CUDA driver that labkernels calls, for machines without a driver: it records what
// it is asked, and describes an H200. It is compiled against NVIDIA's cuda.h for the real layouts.
#include <cuda.h>

#include <cstring>

extern "C" {

struct Recorded {
  unsigned grid[3], block[3], smem_bytes, n_attributes;
  int attribute_id, attribute_value;
  void *stream, *function;
  int launches, refused, dynamic_smem_max, carveout;
  unsigned char params[16];
};
Recorded recorded;
int fail_next_launch;
static thread_local CUcontext current;
static CUcontext primary = reinterpret_cast<CUcontext>(0x100);
static CUfunction kernel = reinterpret_cast<CUfunction>(0x123456789abcull);

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult code, const char** text) {
  *text = code == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult code, const char** text) {
  *text = code == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDriverGetVersion(int* version) { return *version = 13020, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int index) { return *device = index, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int n, CUdevice) {
  return std::strncpy(name, "NVIDIA H200", n), CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  return *bytes = 150'000'000'000, CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 62914560; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = primary, CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  return *context = current, current = nullptr, CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = reinterpret_cast<CUmodule>(0x200);
  const bool elf = std::memcmp(image, "\177ELF", 4) == 0;
  return current != primary || !elf ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  return *function = kernel, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 128; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 448; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 8; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 40; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return function == kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  Recorded& r = recorded;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) r.dynamic_smem_max = value;
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) r.carveout = value;
  return function == kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncGetParamInfo(CUfunction, size_t index, size_t* offset, size_t* size) {
  *offset = 0, *size = sizeof recorded.params;
  return index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                          void** extra) {
  if (current != primary) return ++recorded.refused, CUDA_ERROR_INVALID_CONTEXT;
  if (fail_next_launch || extra) return fail_next_launch = 0, CUDA_ERROR_INVALID_VALUE;
  Recorded& r = recorded;
  r.grid[0] = config->gridDimX, r.grid[1] = config->gridDimY, r.grid[2] = config->gridDimZ;
  r.block[0] = config->blockDimX, r.block[1] = config->blockDimY, r.block[2] = config->blockDimZ;
  r.smem_bytes = config->sharedMemBytes, r.n_attributes = config->numAttrs;
  if (config->numAttrs) {
    r.attribute_id = config->attrs[0].id;
    r.attribute_value = config->attrs[0].value.programmaticStreamSerializationAllowed;
  }
  r.stream = config->hStream, r.function = function, ++r.launches;
  std::memcpy(r.params, params[0], sizeof r.params);
  return CUDA_SUCCESS;
}

}  // extern "C"
