#include "kernels.h"

#include <cctype>
#include <cstring>

#include "block.h"
#include "errors.h"

namespace lockstep {

namespace {

// PTX declares a kernel as '.visible .entry name('.
std::vector<std::string> entry_names(const std::string& ptx) {
  const std::string keyword = ".entry";
  std::vector<std::string> names;
  for (size_t at = ptx.find(keyword); at != std::string::npos; at = ptx.find(keyword, at)) {
    at += keyword.size();
    while (at < ptx.size() && std::isspace(static_cast<unsigned char>(ptx[at]))) at++;
    size_t end = at;
    while (end < ptx.size() && (std::isalnum(static_cast<unsigned char>(ptx[end])) || ptx[end] == '_')) end++;
    if (end > at) names.push_back(ptx.substr(at, end - at));
  }
  return names;
}

}  // namespace

Status Kernels::load(const std::string& ptx) {
  if (ptx.empty()) return {};
  char log[2048] = "";
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  // A number is passed as the pointer itself; one byte less, so that there always is a NUL.
  void* values[] = {log, reinterpret_cast<void*>(sizeof log - 1)};
  if (CUresult error = cuda().cuModuleLoadDataEx(&module_, ptx.c_str(), 2, options, values)) {
    module_ = nullptr;
    Status status = with_context("the kernels cannot be loaded", cuda_status("cuModuleLoadDataEx", error));
    if (*log) status.message += std::string(": ") + log;
    return status;
  }
  for (const std::string& name : entry_names(ptx)) {
    CUfunction function = nullptr;
    if (CUresult error = cuda().cuModuleGetFunction(&function, module_, name.c_str())) {
      return with_context("the kernel " + name + " cannot be loaded", cuda_status("cuModuleGetFunction", error));
    }
    functions_[name] = function;
  }
  return {};
}

void Kernels::unload() {
  if (module_) cuda().cuModuleUnload(module_);
  module_ = nullptr;
}

CUfunction Kernels::find(const std::string& name) const {
  auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second;
}

std::vector<unsigned char> pack_arguments(const std::vector<KernelArgument>& arguments) {
  std::vector<unsigned char> buffer;
  auto append = [&buffer](auto value) {
    size_t at = (buffer.size() + sizeof value - 1) / sizeof value * sizeof value;
    buffer.resize(at + sizeof value);
    std::memcpy(buffer.data() + at, &value, sizeof value);
  };
  for (const KernelArgument& argument : arguments) {
    switch (argument.kind) {
      case KernelArgument::Pointer:
        append(argument.block->address + argument.offset);
        break;
      case KernelArgument::UInt64:
        append(argument.uint64);
        break;
      case KernelArgument::Int32:
        append(argument.int32);
        break;
      case KernelArgument::Float32:
        append(argument.float32);
        break;
    }
  }
  return buffer;
}

}  // namespace lockstep
