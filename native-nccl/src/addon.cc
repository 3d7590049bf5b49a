#include "addon.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "handles.h"

namespace lockstep {

namespace {

// Of the functions in ../index.d.ts; ../index.js and Lockstep compare theirs with it.
constexpr int interface_version = 2;

// A device that does not end in this time, since the driver or an abort hangs, is left to the end of the process.
constexpr auto close_limit = std::chrono::seconds(5);

struct Countdown {
  std::mutex mutex;
  std::condition_variable reached;
  size_t left;

  void count() {
    std::lock_guard<std::mutex> lock(mutex);
    if (--left == 0) reached.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    reached.wait_for(lock, close_limit, [this] { return left == 0; });
  }
};

}  // namespace

// process.exit of the main thread runs no hooks: the threads are then simply gone with the process, and nothing of the
// addon is destroyed under them. The hook is added after the thread-safe function was made: hooks run last first, and
// node closes the function by one.
Instance::Instance(Napi::Env env) : settler_(Settler::create(env)) {
  auto hook = [](void* instance) { static_cast<Instance*>(instance)->close(); };
  if (napi_add_env_cleanup_hook(env, hook, this) != napi_ok) {
    throw Napi::Error::New(env, "lockstep-nccl: no cleanup hook");
  }
}

Napi::Value Instance::promise(Napi::Env env, const std::function<void(Completion)>& start, Napi::Value held) {
  return settler_->promise(env, held, [&start](Settler::Settle settle) {
    start([settle](const Status& status) { settle(status, nullptr); });
  });
}

Napi::Value Instance::promise_communicator(Napi::Env env, const std::function<void(CommCompletion)>& start) {
  return settler_->promise(env, Napi::Value(), [&start](Settler::Settle settle) {
    start([settle](const Status& status, CommRef communicator) {
      if (!status.ok() || !communicator) return settle(status, nullptr);
      settle(status, [communicator](napi_env env) { return wrap(env, CommunicatorHandle{communicator}); });
    });
  });
}

Napi::Value Instance::close_engine(Napi::Env env, const EngineRef& engine) {
  return settler_->promise(env, Napi::Value(), [this, &engine](Settler::Settle settle) {
    close_device(engine, [engines = engines_, engine, settle](const Status& status) {
      engines->forget(engine);
      settle(status, [](napi_env env) {
        napi_value undefined = nullptr;
        napi_get_undefined(env, &undefined);
        return undefined;
      });
    });
  });
}

Napi::Value Instance::open_engine(Napi::Env env, int index, std::string ptx) {
  return settler_->promise(env, Napi::Value(), [&](Settler::Settle settle) {
    auto open = [engines = engines_, index, ptx = std::move(ptx), settle] {
      Status status;
      EngineRef engine = open_device(index, ptx, &status);
      if (!status.ok()) return settle(status, nullptr);
      if (!engines->add(engine)) return;
      settle(status, [engine](napi_env env) { return wrap(env, DeviceHandle{engine}); });
    };
    try {
      std::thread(std::move(open)).detach();
    } catch (const std::system_error& error) {
      Status status;
      status.code = Code::Unavailable;
      status.message = std::string("no thread to open the device on: ") + error.what();
      settle(status, nullptr);
    }
  });
}

bool OpenEngines::add(const EngineRef& engine) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!has_ended_) {
      engines_.push_back(engine);
      return true;
    }
  }
  close_device(engine, nullptr);
  return false;
}

void OpenEngines::forget(const EngineRef& engine) {
  std::lock_guard<std::mutex> lock(mutex_);
  engines_.erase(std::remove(engines_.begin(), engines_.end(), engine), engines_.end());
}

std::vector<EngineRef> OpenEngines::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_ended_ = true;
  return std::move(engines_);
}

void Instance::close() {
  settler_->close();
  std::vector<EngineRef> engines = engines_->end();
  if (engines.empty()) return;
  // Shared: a device may end after the wait was given up.
  auto countdown = std::make_shared<Countdown>();
  countdown->left = engines.size();
  for (const EngineRef& engine : engines) close_device(engine, [countdown](const Status&) { countdown->count(); });
  countdown->wait();
}

Napi::Object start(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Instance(env));
  exports.Set("INTERFACE_VERSION", Napi::Number::New(env, interface_version));
  add_library_functions(env, exports);
  add_device_functions(env, exports);
  add_memory_functions(env, exports);
  add_communicator_functions(env, exports);
  return exports;
}

NODE_API_MODULE(lockstep_nccl, start)

}  // namespace lockstep
