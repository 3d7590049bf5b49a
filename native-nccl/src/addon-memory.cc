// Blocks of device memory, and copies from and to them.
#include <utility>

#include "addon.h"

namespace lockstep {

namespace {

// The offset that is argument `index`, of a block that has `bytes` bytes from there.
size_t read_offset(const Argument& argument, const BlockRef& block, size_t bytes) {
  size_t offset = argument.count();
  if (offset > bytes_of(block) || bytes > bytes_of(block) - offset) {
    argument.fail_range("a place from which " + std::to_string(bytes) + " bytes are in a block of " +
                        std::to_string(bytes_of(block)));
  }
  return offset;
}

Napi::Value allocate_block(const Napi::CallbackInfo& info) {
  const EngineRef& engine = Argument(info, 0, "allocate", "device").handle<DeviceHandle>().engine;
  size_t bytes = Argument(info, 1, "allocate", "byteLength").count();
  Status status;
  BlockRef block = allocate(engine, bytes, &status);
  if (!status.ok()) throw Failure{status};
  return Napi::Value(info.Env(), wrap(info.Env(), BlockHandle{block}));
}

Napi::Value release_block(const Napi::CallbackInfo& info) {
  Argument(info, 0, "release", "block").handle<BlockHandle>().block.reset();
  return info.Env().Undefined();
}

Napi::Value trim_device(const Napi::CallbackInfo& info) {
  EngineRef engine = Argument(info, 0, "trim", "device").handle<DeviceHandle>().engine;
  return Instance::of(info.Env()).promise(info.Env(), [&](Completion complete) { trim(engine, std::move(complete)); });
}

Napi::Value upload_view(const Napi::CallbackInfo& info) {
  Argument held(info, 2, "upload", "view");
  View view = held.view();
  int64_t timeout_ms = Argument(info, 3, "upload", "timeoutMs").timeout();
  BlockRef block = Argument(info, 0, "upload", "block").block();
  size_t offset = read_offset(Argument(info, 1, "upload", "byteOffset"), block, view.bytes);
  auto start = [&](Completion complete) {
    upload(block, offset, view.data, view.bytes, timeout_ms, std::move(complete));
  };
  return Instance::of(info.Env()).promise(info.Env(), start, held.value());
}

Napi::Value download_view(const Napi::CallbackInfo& info) {
  Argument held(info, 2, "download", "view");
  View view = held.view();
  int64_t timeout_ms = Argument(info, 3, "download", "timeoutMs").timeout();
  BlockRef block = Argument(info, 0, "download", "block").block();
  size_t offset = read_offset(Argument(info, 1, "download", "byteOffset"), block, view.bytes);
  auto start = [&](Completion complete) {
    download(block, offset, view.data, view.bytes, timeout_ms, std::move(complete));
  };
  return Instance::of(info.Env()).promise(info.Env(), start, held.value());
}

Napi::Value copy_block(const Napi::CallbackInfo& info) {
  Argument source_argument(info, 2, "copy", "source");
  size_t bytes = Argument(info, 4, "copy", "byteLength").count();
  BlockRef target = Argument(info, 0, "copy", "target").block(), source = source_argument.block();
  size_t target_offset = read_offset(Argument(info, 1, "copy", "targetOffset"), target, bytes);
  size_t source_offset = read_offset(Argument(info, 3, "copy", "sourceOffset"), source, bytes);
  if (engine_of(source) != engine_of(target)) source_argument.fail_range("a block of the target's device");
  copy(target, target_offset, source, source_offset, bytes);
  return info.Env().Undefined();
}

}  // namespace

void add_memory_functions(Napi::Env env, Napi::Object exports) {
  exports.Set("allocate", Napi::Function::New(env, throwing<allocate_block>, "allocate"));
  exports.Set("release", Napi::Function::New(env, throwing<release_block>, "release"));
  exports.Set("trim", Napi::Function::New(env, rejecting<trim_device>, "trim"));
  exports.Set("upload", Napi::Function::New(env, rejecting<upload_view>, "upload"));
  exports.Set("download", Napi::Function::New(env, rejecting<download_view>, "download"));
  exports.Set("copy", Napi::Function::New(env, throwing<copy_block>, "copy"));
}

}  // namespace lockstep
