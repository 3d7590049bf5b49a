// Devices, contexts and error names.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "driver.h"

namespace stand_in {

static thread_local int current = -1;
static std::atomic<int> races{0}, reports{0};

Driver& driver() {
  // Never destroyed: threads of streams may outlive main.
  static Driver* const instance = new Driver;
  return *instance;
}

int device_count() { return static_cast<int>(std::clamp(number("STANDIN_CUDA_DEVICES", 1), 0l, long{MaxDevices})); }

int current_device() { return current; }

CUresult context_result() {
  // A driver does not work in a process forked from one that had initialised it.
  if (driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
  Lock lock(driver().mutex);
  const Device& device = driver().devices[current];
  return device.retained ? device.sticky.load() : CUDA_ERROR_INVALID_CONTEXT;
}

void fail(const char* kind, const std::string& message) {
  reports++;
  if (!std::strcmp(kind, "RACE")) races++;
  report(kind, message);
}

static CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t{0x1000} + device); }

// The last release of a primary context destroys what belongs to it.
static void reset_device(int device) {
  Driver& state = driver();
  free_all(device);
  for (auto& [handle, stream] : state.streams) {
    if (stream->device == device) destroy(*stream);
  }
  for (auto it = state.events.begin(); it != state.events.end();) {
    it = it->second->device == device ? state.events.erase(it) : std::next(it);
  }
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT int standin_cuda_current_device() { return current_device(); }
STANDIN_EXPORT int standin_cuda_race_count() { return races.load(); }
STANDIN_EXPORT int standin_cuda_report_count() { return reports.load(); }

STANDIN_EXPORT CUresult cuInit(unsigned flags) {
  STANDIN_CALL(cuInit);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!device_count()) return CUDA_ERROR_NO_DEVICE;
  Lock lock(driver().mutex);
  if (driver().process && driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  driver().process = getpid();
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDriverGetVersion(int* version) {
  STANDIN_CALL(cuDriverGetVersion);
  *version = static_cast<int>(number("STANDIN_CUDA_DRIVER_VERSION", 13000));
  return CUDA_SUCCESS;
}

static const struct { CUresult result; const char *name, *words; } errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

STANDIN_EXPORT CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = nullptr;
  for (const auto& error : errors) {
    if (error.result == result) *name = error.name;
  }
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STANDIN_EXPORT CUresult cuGetErrorString(CUresult result, const char** words) {
  *words = nullptr;
  for (const auto& error : errors) {
    if (error.result == result) *words = error.words;
  }
  return *words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STANDIN_EXPORT CUresult cuDeviceGetCount(int* count) {
  STANDIN_CALL(cuDeviceGetCount);
  if (driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = device_count();
  return CUDA_SUCCESS;
}

static CUresult device_result(CUdevice device) {
  if (driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  return device >= 0 && device < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

STANDIN_EXPORT CUresult cuDeviceGet(CUdevice* device, int index) {
  STANDIN_CALL(cuDeviceGet);
  *device = index;
  return device_result(index);
}

STANDIN_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  STANDIN_CALL(cuDeviceGetName);
  std::snprintf(name, length, "Stand-in device %d", device);
  return device_result(device);
}

STANDIN_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  STANDIN_CALL(cuDeviceGetAttribute);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case 16: *value = 4; break;  // multiprocessors
    default: *value = 1;
  }
  return device_result(device);
}

// Distinct for each index, the same in all processes of a machine.
STANDIN_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  STANDIN_CALL(cuDeviceGetUuid_v2);
  std::memcpy(uuid->bytes, "stand-in device", 16);
  uuid->bytes[15] = static_cast<char>(device);
  const std::string forced = text("STANDIN_CUDA_UUID");
  for (size_t i = 0; i < 16 && forced.size() == 32; i++) {
    uuid->bytes[i] = static_cast<char>(std::strtol(forced.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return device_result(device);
}

STANDIN_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  STANDIN_CALL(cuDeviceGetPCIBusId);
  std::snprintf(id, length, "0000:%02x:00.0", device + 1);
  return device_result(device);
}

STANDIN_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  STANDIN_CALL(cuDeviceTotalMem_v2);
  *bytes = total_bytes();
  return device_result(device);
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  STANDIN_CALL(cuDevicePrimaryCtxRetain);
  if (const CUresult bad = device_result(device)) return bad;
  Lock lock(driver().mutex);
  driver().devices[device].retained++;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  STANDIN_CALL(cuDevicePrimaryCtxRelease_v2);
  if (const CUresult bad = device_result(device)) return bad;
  Lock lock(driver().mutex);
  int& retained = driver().devices[device].retained;
  if (!retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (!--retained) {
    wait_for_device(lock, device);
    reset_device(device);
  }
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  STANDIN_CALL(cuCtxSetCurrent);
  if (driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  const int device = context ? static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0x1000) : -1;
  if (device >= MaxDevices || device < -1) return CUDA_ERROR_INVALID_CONTEXT;
  Lock lock(driver().mutex);
  if (device >= 0 && !driver().devices[device].retained) return CUDA_ERROR_INVALID_CONTEXT;
  current = device;
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  STANDIN_CALL(cuCtxGetCurrent);
  if (driver().process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = current < 0 ? nullptr : context_of(current);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuCtxSynchronize() {
  STANDIN_CONTEXT_CALL(cuCtxSynchronize);
  Lock lock(driver().mutex);
  return wait_for_device(lock, current);
}
