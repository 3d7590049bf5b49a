// Modules and kernels: what a PTX text says there is, run from the CPU build of the same source (libkernels.so).
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "../../kernels/kernel-table.h"
#include "driver.h"

namespace stand_in {

using lockstep::StandInKernel;
using lockstep::StandInParameter;

enum { UnsupportedPtxVersion = 222 };  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION

struct Function {
  const StandInKernel* kernel;
  uint64_t module;
  int device;
};

// By handle; under the driver's mutex.
static std::map<uint64_t, int>& modules() {
  static auto* const all = new std::map<uint64_t, int>;
  return *all;
}
static std::map<uint64_t, std::map<std::string, uint64_t>>& names() {
  static auto* const all = new std::map<uint64_t, std::map<std::string, uint64_t>>;
  return *all;
}
static std::map<uint64_t, Function>& functions() {
  static auto* const all = new std::map<uint64_t, Function>;
  return *all;
}

// libkernels.so lies beside this library.
static std::string kernels_path() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&kernels_path), &info);
  const std::string self = info.dli_fname ? info.dli_fname : "";
  return text("STANDIN_CUDA_KERNELS", (self.substr(0, self.rfind('/') + 1) + "libkernels.so").c_str());
}

static const StandInKernel* find_kernel(const std::string& name) {
  static const StandInKernel* table = nullptr;
  static int count = 0;
  if (!table) {
    void* library = dlopen(kernels_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fail("KERNELS", dlerror());
      return nullptr;
    }
    auto kernels = reinterpret_cast<const StandInKernel* (*)(int*)>(dlsym(library, "standin_kernels"));
    if (kernels) table = kernels(&count);
  }
  for (int i = 0; i < count; i++) {
    if (name == table[i].name) return &table[i];
  }
  return nullptr;
}

// The parameter block, from either form of the arguments of cuLaunchKernel; empty and reported where it does not fit.
static std::vector<char> parameter_block(const StandInKernel& kernel, void** parameters, void** extra) {
  std::vector<char> block(kernel.parameter_bytes);
  const char* buffer = nullptr;
  size_t bytes = 0;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(extra[i + 1]);
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[i + 1]);
  }
  if (parameters && !extra) {
    for (int i = 0; i < kernel.parameter_count; i++) {
      const StandInParameter& parameter = kernel.parameters[i];
      std::memcpy(block.data() + parameter.offset, parameters[i], parameter.bytes);
    }
  } else if (buffer && bytes == kernel.parameter_bytes) {
    std::memcpy(block.data(), buffer, bytes);
  } else {
    fail("LAUNCH", std::string(kernel.name) + ": the parameter block has " + std::to_string(bytes) + " bytes, not " +
                       std::to_string(kernel.parameter_bytes));
    block.clear();
  }
  return block;
}

// How much a kernel touches cannot be seen from a pointer: it is taken to be all that follows in the pointer's block.
static size_t rest_of_block(uint64_t pointer) {
  if (!pointer) return 0;
  auto allocation = find_allocation(pointer);
  if (!allocation) return 1;
  auto after = allocation->blocks.upper_bound(pointer);
  if (allocation->blocks.empty()) return allocation->base + allocation->bytes - pointer;
  if (after == allocation->blocks.begin()) return 1;
  const auto& [address, block] = *std::prev(after);
  return pointer < address + block.bytes ? address + block.bytes - pointer : 1;
}

static int run_kernel(const StandInKernel& kernel, std::vector<char> block, const std::vector<size_t>& pointer_offsets,
                      const unsigned* grid, const unsigned* threads, size_t shared_bytes, void** host) {
  for (size_t i = 0; i < pointer_offsets.size(); i++) {
    std::memcpy(block.data() + pointer_offsets[i], &host[i], sizeof(void*));
  }
  try {
    kernel.run(block.data(), grid, threads, shared_bytes);
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    fail("KERNEL", std::string(kernel.name) + ": " + error.what());
    return CUDA_ERROR_LAUNCH_FAILED;
  }
}

static CUresult load(CUmodule* module, const void* image) {
  const std::string ptx = static_cast<const char*>(image);
  const size_t version = ptx.find(".version ");
  if (version == std::string::npos) return CUDA_ERROR_INVALID_IMAGE;
  // PTX 7 came with CUDA 11, 8 with 12, 9 with 13; an older driver refuses it.
  const int major = std::atoi(ptx.c_str() + version + std::strlen(".version "));
  if (major + 4 > number("STANDIN_CUDA_DRIVER_VERSION", 13000) / 1000) return UnsupportedPtxVersion;
  Driver& state = driver();
  Lock lock(state.mutex);
  const uint64_t handle = state.next_handle += 16;
  modules()[handle] = current_device();
  const std::string entry = ".entry ";
  for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
    const size_t begin = at + entry.size();
    const std::string name = ptx.substr(begin, ptx.find_first_of("( \n", begin) - begin);
    const StandInKernel* kernel = find_kernel(name);
    if (!kernel) continue;
    state.next_handle += 16;
    names()[handle][name] = state.next_handle;
    functions()[state.next_handle] = {kernel, handle, current_device()};
  }
  *module = reinterpret_cast<CUmodule>(handle);
  return CUDA_SUCCESS;
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  STANDIN_CONTEXT_CALL(cuModuleLoadData);
  return load(module, image);
}

STANDIN_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                                           void** values) {
  STANDIN_CONTEXT_CALL(cuModuleLoadDataEx);
  usleep(number("STANDIN_CUDA_LOAD_DELAY_US", 0));  // as the driver compiles
  const CUresult result = load(module, image);
  char* log = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) bytes = reinterpret_cast<size_t>(values[i]);
  }
  if (result == CUDA_ERROR_INVALID_IMAGE && log) std::snprintf(log, bytes, "no .version in the text");
  return result;
}

STANDIN_EXPORT CUresult cuModuleUnload(CUmodule module) {
  STANDIN_CONTEXT_CALL(cuModuleUnload);
  Lock lock(driver().mutex);
  const uint64_t handle = reinterpret_cast<uint64_t>(module);
  if (!modules().erase(handle)) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [name, function] : names()[handle]) functions().erase(function);
  names().erase(handle);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  STANDIN_CONTEXT_CALL(cuModuleGetFunction);
  Lock lock(driver().mutex);
  const uint64_t handle = reinterpret_cast<uint64_t>(module);
  if (!modules().count(handle)) return CUDA_ERROR_INVALID_HANDLE;
  auto found = names()[handle].find(name);
  if (found == names()[handle].end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(found->second);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                       CUstream stream, void** parameters, void** extra) {
  STANDIN_CONTEXT_CALL(cuLaunchKernel);
  const unsigned long long threads = 1ull * block_x * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || !threads || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  std::vector<StandInRange> ranges;
  std::vector<size_t> pointer_offsets;
  std::vector<char> block;
  const StandInKernel* kernel = nullptr;
  {
    Lock lock(driver().mutex);
    auto function = functions().find(reinterpret_cast<uint64_t>(handle));
    if (function == functions().end()) return CUDA_ERROR_INVALID_HANDLE;
    auto of_stream = find_stream(stream);
    if (of_stream && of_stream->device != function->second.device) return CUDA_ERROR_INVALID_HANDLE;
    kernel = function->second.kernel;
    block = parameter_block(*kernel, parameters, extra);
    if (block.empty() && kernel->parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < kernel->parameter_count; i++) {
      const StandInParameter& parameter = kernel->parameters[i];
      if (!parameter.is_pointer) continue;
      CUdeviceptr pointer;
      std::memcpy(&pointer, block.data() + parameter.offset, sizeof pointer);
      ranges.push_back({pointer, rest_of_block(pointer), !parameter.is_const});
      pointer_offsets.push_back(parameter.offset);
    }
  }
  return enqueue(stream, kernel->name, std::move(ranges), true, [=](void** host) {
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, threads_of_block[3] = {block_x, block_y, block_z};
    return run_kernel(*kernel, block, pointer_offsets, grid, threads_of_block, shared_bytes, host);
  });
}
