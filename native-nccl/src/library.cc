#include "library.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "errors.h"

namespace lockstep {

namespace {

// On the heap and never destroyed: engine threads may run until the very end of the process.
struct Libraries {
  std::mutex mutex;
  bool is_probed = false;
  Probe found;
  CudaFunctions cuda;
  NcclFunctions nccl;
};

Libraries& libraries() {
  static Libraries* all = new Libraries;
  return *all;
}

// Node unloads an addon with the last worker that used it; threads that were left behind must not lose their code.
void pin_this_library() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&pin_this_library), &info) && info.dli_fname) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
}

// RTLD_LOCAL: two copies of NCCL in one symbol table would mix their thread-local group state.
void* open_first(const std::vector<std::string>& paths, LibraryProbe* result) {
  if (paths.empty()) result->error = "no path to try";
  for (const std::string& path : paths) {
    result->tried.push_back(path);
    dlerror();
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      result->path = path;
      result->error.clear();
      return handle;
    }
    const char* reason = dlerror();
    if (!result->error.empty()) result->error += "; ";
    result->error += reason ? reason : path + " cannot be loaded";
  }
  return nullptr;
}

template <class Function>
bool resolve(void* handle, const char* name, Function* function, LibraryProbe* result) {
  *reinterpret_cast<void**>(function) = dlsym(handle, name);
  if (*function) return true;
  if (result->error.empty()) result->error = result->path + " lacks the function " + name;
  return false;
}

int load_cuda(const std::vector<std::string>& paths, LibraryProbe* result) {
  CudaFunctions& functions = libraries().cuda;
  void* handle = open_first(paths, result);
  if (!handle) return 0;
  bool has_all = true;
#define LOCKSTEP_RESOLVE(name, parameters) has_all = resolve(handle, #name, &functions.name, result) && has_all;
  LOCKSTEP_CUDA_FUNCTIONS(LOCKSTEP_RESOLVE)
#undef LOCKSTEP_RESOLVE
  if (functions.cuDriverGetVersion) functions.cuDriverGetVersion(&result->version);
  if (!has_all) return 0;
  *reinterpret_cast<void**>(&functions.standin_cuda_note_block) = dlsym(handle, "standin_cuda_note_block");
  if (CUresult error = functions.cuInit(0)) {
    result->error = describe_cuda(functions, "cuInit", error);
    if (error == CUDA_ERROR_NO_DEVICE) result->error += ": the driver found no CUDA device";
    return 0;
  }
  int count = 0;
  if (CUresult error = functions.cuDeviceGetCount(&count)) {
    result->error = describe_cuda(functions, "cuDeviceGetCount", error);
    return 0;
  }
  result->is_loaded = true;
  if (count == 0) result->error = "the driver found no CUDA device";
  return count;
}

void load_nccl(const std::vector<std::string>& paths, LibraryProbe* result) {
  NcclFunctions& functions = libraries().nccl;
  void* handle = open_first(paths, result);
  if (!handle || !resolve(handle, "ncclGetVersion", &functions.ncclGetVersion, result)) return;
  if (ncclResult_t error = functions.ncclGetVersion(&result->version)) {
    result->error = "ncclGetVersion of " + result->path + " returned " + std::to_string(error);
    return;
  }
  // Before the other functions are looked for: an old one lacks some, and its age is the better reason.
  if (result->version < NCCL_OLDEST) {
    result->error = "NCCL " + nccl_version_words(result->version) + " in " + result->path + " is too old: " +
                    nccl_version_words(NCCL_OLDEST) + " or newer is needed";
    return;
  }
  bool has_all = true;
#define LOCKSTEP_RESOLVE(name, parameters) has_all = resolve(handle, #name, &functions.name, result) && has_all;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_RESOLVE)
  LOCKSTEP_RESOLVE(ncclGetErrorString, )
  LOCKSTEP_RESOLVE(ncclGetLastError, )
#undef LOCKSTEP_RESOLVE
  result->is_loaded = has_all;
}

}  // namespace

const Probe& probe(const std::vector<std::string>& cuda_paths, const std::vector<std::string>& nccl_paths) {
  Libraries& all = libraries();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.is_probed) {
    all.is_probed = true;
    pin_this_library();
    all.found.device_count = load_cuda(cuda_paths, &all.found.cuda);
    load_nccl(nccl_paths, &all.found.nccl);
  }
  return all.found;
}

Status library_status() {
  Libraries& all = libraries();
  std::lock_guard<std::mutex> lock(all.mutex);
  Status status;
  if (all.found.cuda.is_loaded && all.found.nccl.is_loaded) return status;
  status.code = Code::Unavailable;
  if (!all.is_probed) status.message = "the libraries were not loaded: call probe first";
  else if (!all.found.cuda.is_loaded) status.message = "the CUDA driver cannot be used: " + all.found.cuda.error;
  else status.message = "NCCL cannot be used: " + all.found.nccl.error;
  return status;
}

CudaFunctions& cuda() { return libraries().cuda; }
NcclFunctions& nccl() { return libraries().nccl; }

Status device_info(int index, DeviceInfo* info) {
  Status status = library_status();
  if (!status.ok()) return status;
  CUdevice device = 0;
  if (CUresult error = cuda().cuDeviceGet(&device, index)) return cuda_status("cuDeviceGet", error);
  char name[256] = "", bus_id[32] = "";
  CUuuid uuid = {};
  size_t total = 0;
  if (CUresult error = cuda().cuDeviceGetName(name, sizeof name, device)) return cuda_status("cuDeviceGetName", error);
  if (CUresult error = cuda().cuDeviceGetUuid_v2(&uuid, device)) return cuda_status("cuDeviceGetUuid", error);
  if (CUresult error = cuda().cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device)) {
    return cuda_status("cuDeviceGetPCIBusId", error);
  }
  if (CUresult error = cuda().cuDeviceTotalMem_v2(&total, device)) return cuda_status("cuDeviceTotalMem", error);
  const int attributes[] = {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR};
  int capability[2] = {};
  for (int i = 0; i < 2; i++) {
    CUresult error = cuda().cuDeviceGetAttribute(&capability[i], attributes[i], device);
    if (error) return cuda_status("cuDeviceGetAttribute", error);
  }
  info->name = name;
  info->pci_bus_id = bus_id;
  info->total_bytes = total;
  info->compute_major = capability[0];
  info->compute_minor = capability[1];
  info->uuid.clear();
  for (char byte : uuid.bytes) {
    const char* digits = "0123456789abcdef";
    info->uuid += digits[(byte >> 4) & 15];
    info->uuid += digits[byte & 15];
  }
  return status;
}

Status unique_id(uint8_t* id) {
  Status status = library_status();
  if (!status.ok()) return status;
  ncclUniqueId made;
  if (ncclResult_t error = nccl().ncclGetUniqueId(&made)) return nccl_status("ncclGetUniqueId", error, nullptr);
  std::memcpy(id, made.internal, sizeof made.internal);
  return status;
}

}  // namespace lockstep
