// What JavaScript holds of the engine: externals, each with a tag, so that a wrong one is found. A finalizer only drops
// a reference; the engine frees what nobody needs, on threads of its own.
#pragma once
#include <napi.h>

#include <utility>

#include "engine.h"

namespace lockstep {

// Drawn at random once; other addons' externals have others.
inline constexpr napi_type_tag device_tag = {0x6c1f0b7e5a8d4931, 0x9d2b6a1047c3e5f1};
inline constexpr napi_type_tag block_tag = {0x6c1f0b7e5a8d4931, 0x9d2b6a1047c3e5f2};
inline constexpr napi_type_tag communicator_tag = {0x6c1f0b7e5a8d4931, 0x9d2b6a1047c3e5f3};

struct DeviceHandle {
  EngineRef engine;
  static constexpr const napi_type_tag* tag = &device_tag;
  static constexpr const char* name = "a device of openDevice";
};

struct BlockHandle {
  BlockRef block;  // null once released
  static constexpr const napi_type_tag* tag = &block_tag;
  static constexpr const char* name = "a block of allocate";
};

struct CommunicatorHandle {
  CommRef communicator;
  static constexpr const napi_type_tag* tag = &communicator_tag;
  static constexpr const char* name = "a communicator of commInit or commSplit";
};

// By C functions, as promises are settled with it too; see settle.cc. A null value where it cannot be made.
template <class Handle>
napi_value wrap(napi_env env, Handle handle) {
  auto* data = new Handle(std::move(handle));
  auto finalize = [](napi_env, void* pointer, void*) { delete static_cast<Handle*>(pointer); };
  napi_value external = nullptr;
  if (napi_create_external(env, data, finalize, nullptr, &external) != napi_ok) {
    delete data;
    return nullptr;
  }
  return napi_type_tag_object(env, external, Handle::tag) == napi_ok ? external : nullptr;
}

// Null where the value is something else.
template <class Handle>
Handle* unwrap(napi_env env, napi_value value) {
  napi_valuetype type;
  bool is_tagged = false;
  void* data = nullptr;
  if (napi_typeof(env, value, &type) != napi_ok || type != napi_external) return nullptr;
  if (napi_check_object_type_tag(env, value, Handle::tag, &is_tagged) != napi_ok || !is_tagged) return nullptr;
  return napi_get_value_external(env, value, &data) == napi_ok ? static_cast<Handle*>(data) : nullptr;
}

}  // namespace lockstep
