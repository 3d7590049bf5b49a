// What needs no open device: loading of the libraries, description of devices, unique ids.
#include <cstring>
#include <utility>

#include "addon.h"
#include "library.h"

namespace lockstep {

namespace {

std::vector<std::string> read_paths(const Argument& argument) {
  std::vector<std::string> result;
  for (uint32_t i = 0, length = argument.length(); i < length; i++) result.push_back(argument.element(i).text());
  return result;
}

Napi::Object describe(Napi::Env env, const LibraryProbe& library) {
  auto result = Napi::Object::New(env);
  auto tried = Napi::Array::New(env, library.tried.size());
  for (uint32_t i = 0; i < library.tried.size(); i++) tried.Set(i, library.tried[i]);
  result.Set("isLoaded", Napi::Boolean::New(env, library.is_loaded));
  if (!library.path.empty()) result.Set("path", library.path);
  result.Set("tried", tried);
  if (library.version != 0) result.Set("version", Napi::Number::New(env, library.version));
  if (!library.error.empty()) result.Set("error", library.error);
  return result;
}

Napi::Value probe_libraries(const Napi::CallbackInfo& info) {
  Argument paths(info, 0, "probe", "paths");
  auto cuda_paths = read_paths(paths.field("cuda")), nccl_paths = read_paths(paths.field("nccl"));
  const Probe& found = probe(cuda_paths, nccl_paths);
  auto result = Napi::Object::New(info.Env());
  result.Set("cuda", describe(info.Env(), found.cuda));
  result.Set("nccl", describe(info.Env(), found.nccl));
  result.Set("deviceCount", Napi::Number::New(info.Env(), found.device_count));
  return result;
}

Napi::Value read_device_info(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  DeviceInfo device;
  int index = static_cast<int>(Argument(info, 0, "deviceInfo", "index").whole(0, largest_int));
  Status status = device_info(index, &device);
  if (!status.ok()) throw Failure{status};
  auto result = Napi::Object::New(env), capability = Napi::Object(Napi::Array::New(env, 2));
  capability.Set(uint32_t{0}, Napi::Number::New(env, device.compute_major));
  capability.Set(uint32_t{1}, Napi::Number::New(env, device.compute_minor));
  result.Set("name", device.name);
  result.Set("uuid", device.uuid);
  result.Set("pciBusId", device.pci_bus_id);
  result.Set("totalBytes", Napi::Number::New(env, double(device.total_bytes)));
  result.Set("computeCapability", capability);
  return result;
}

Napi::Value make_unique_id(const Napi::CallbackInfo& info) {
  uint8_t id[sizeof(ncclUniqueId)];
  Status status = unique_id(id);
  if (!status.ok()) throw Failure{status};
  auto result = Napi::Uint8Array::New(info.Env(), sizeof id);
  std::memcpy(result.Data(), id, sizeof id);
  return result;
}

}  // namespace

void add_library_functions(Napi::Env env, Napi::Object exports) {
  exports.Set("probe", Napi::Function::New(env, throwing<probe_libraries>, "probe"));
  exports.Set("deviceInfo", Napi::Function::New(env, throwing<read_device_info>, "deviceInfo"));
  exports.Set("uniqueId", Napi::Function::New(env, throwing<make_unique_id>, "uniqueId"));
}

}  // namespace lockstep
