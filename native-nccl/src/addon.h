// The N-API layer: converts, calls, says what came of it. One file for each part of ../index.d.ts.
#pragma once
#include <napi.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arguments.h"
#include "engine.h"
#include "settle.h"

namespace lockstep {

// The devices of an environment that are not closed: one whose handle was collected is closed with the environment at
// the latest. Shared with the threads that open devices.
class OpenEngines {
 public:
  // False, and the device is being closed, where the environment is gone.
  bool add(const EngineRef& engine);
  void forget(const EngineRef& engine);
  // All, and no more are taken.
  std::vector<EngineRef> end();

 private:
  std::mutex mutex_;
  std::vector<EngineRef> engines_;
  bool has_ended_ = false;
};

// What belongs to one environment: the main thread, or a worker. The addon has no other state of its own.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

  // The promise of something that `start` begins on an engine, which calls what `start` is given.
  Napi::Value promise(Napi::Env env, const std::function<void(Completion)>& start, Napi::Value held = {});
  Napi::Value promise_communicator(Napi::Env env, const std::function<void(CommCompletion)>& start);

  // The promise of a device, which is opened on a thread of its own: the driver may take a second for it.
  Napi::Value open_engine(Napi::Env env, int index, std::string ptx);
  void add(const EngineRef& engine) { engines_->add(engine); }
  // The promise of the device's end.
  Napi::Value close_engine(Napi::Env env, const EngineRef& engine);

 private:
  // Before the environment goes away: no call into it any more, and nothing left that runs for it.
  void close();

  std::shared_ptr<Settler> settler_;
  std::shared_ptr<OpenEngines> engines_ = std::make_shared<OpenEngines>();
};

using Body = Napi::Value (*)(const Napi::CallbackInfo&);

// A function that returns or throws.
template <Body body>
Napi::Value throwing(const Napi::CallbackInfo& info) {
  try {
    return body(info);
  } catch (const Failure& failure) {
    napi_value error = make_failure(info.Env(), failure.status);
    throw Napi::Error(info.Env(), error);
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Napi::Error::New(info.Env(), error.what());
  }
}

template <Body body>
Napi::Value attempt(const Napi::CallbackInfo& info) {
  try {
    return body(info);
  } catch (const Failure& failure) {
    auto fail = [status = failure.status](Completion complete) { complete(status); };
    return Instance::of(info.Env()).promise(info.Env(), fail);
  }
}

// A function that returns a promise: it throws only for its arguments.
template <Body body>
Napi::Value rejecting(const Napi::CallbackInfo& info) {
  return throwing<attempt<body>>(info);
}

void add_library_functions(Napi::Env env, Napi::Object exports);
void add_device_functions(Napi::Env env, Napi::Object exports);
void add_memory_functions(Napi::Env env, Napi::Object exports);
void add_communicator_functions(Napi::Env env, Napi::Object exports);

}  // namespace lockstep
