// Copies and fills. All are asynchronous, those with ordinary host memory too: CUDA promises no less and no more.
#include <cstring>

#include "driver.h"

using namespace stand_in;

// The host's side of a copy is checked where it is pinned memory.
static StandInRange host_range(const void* pointer, size_t bytes, bool is_written) {
  Lock lock(driver().mutex);
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  return {address, find_allocation(address) ? bytes : 0, is_written};
}

STANDIN_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes, CUstream stream) {
  STANDIN_CONTEXT_CALL(cuMemcpyHtoDAsync_v2);
  return enqueue(stream, "cuMemcpyHtoDAsync", {{target, bytes, 1}, host_range(source, bytes, false)}, true,
                 [=](void** host) {
                   if (bytes) std::memcpy(host[0], source, bytes);
                   return 0;
                 });
}

STANDIN_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes, CUstream stream) {
  STANDIN_CONTEXT_CALL(cuMemcpyDtoHAsync_v2);
  return enqueue(stream, "cuMemcpyDtoHAsync", {{source, bytes, 0}, host_range(target, bytes, true)}, true,
                 [=](void** host) {
                   if (bytes) std::memcpy(target, host[0], bytes);
                   return 0;
                 });
}

STANDIN_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  STANDIN_CONTEXT_CALL(cuMemcpyDtoDAsync_v2);
  return enqueue(stream, "cuMemcpyDtoDAsync", {{target, bytes, 1}, {source, bytes, 0}}, true, [=](void** host) {
    if (bytes) std::memmove(host[0], host[1], bytes);
    return 0;
  });
}

STANDIN_EXPORT CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream) {
  STANDIN_CONTEXT_CALL(cuMemsetD8Async);
  return enqueue(stream, "cuMemsetD8Async", {{target, bytes, 1}}, true, [=](void** host) {
    if (bytes) std::memset(host[0], value, bytes);
    return 0;
  });
}

STANDIN_EXPORT CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  STANDIN_CONTEXT_CALL(cuMemsetD32Async);
  if (target % 4) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, "cuMemsetD32Async", {{target, count * 4, 1}}, true, [=](void** host) {
    for (size_t i = 0; i < count; i++) static_cast<unsigned*>(host[0])[i] = value;
    return 0;
  });
}
