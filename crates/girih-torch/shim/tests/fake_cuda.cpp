// The few calls of the CUDA runtime that the tests reach, for a machine without a GPU.
//
// The program's own definitions come before those of libcudart when symbols are resolved, for
// libc10_cuda as well. There are two devices; one thread has one current device.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

namespace {
thread_local int t_device = 0;
}

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  t_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t size) {
  *address = std::malloc(size);
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind) {
  std::memcpy(to, from, count);
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) {
  return cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
}

} // extern "C"
