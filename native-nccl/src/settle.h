// Promises that are settled from other threads, by one thread-safe function for each environment (main thread or
// worker).
//
// [Note: life of a promise] `promise` makes it on the JavaScript thread, notes it as pending together with the value
// that must stay alive, and gives the completion to the engine. The engine calls the completion on a thread of its own,
// once; what came of it goes into a list, and the first entry of a list wakes the JavaScript thread, which settles the
// whole list. The loop is kept alive only while promises are pending, so that an idle program ends by itself. `close`
// is called before the environment goes away; from then on completions are dropped, and the thread-safe function is not
// called any more.
#pragma once
#include <napi.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "status.h"

namespace lockstep {

class Settler : public std::enable_shared_from_this<Settler> {
 public:
  // Makes the value of a promise on the JavaScript thread; a null value where it cannot.
  using MakeValue = std::function<napi_value(napi_env)>;
  // Called from any thread, once.
  using Settle = std::function<void(const Status&, MakeValue)>;

  static std::shared_ptr<Settler> create(Napi::Env env);

  // Calls `start` with what settles the promise. `held` (may be empty) stays alive until then.
  Napi::Value promise(Napi::Env env, Napi::Value held, const std::function<void(Settle)>& start);

  // On the JavaScript thread, while it may still call N-API. Idempotent.
  void close();

 private:
  struct Pending {
    napi_deferred deferred;
    Napi::Reference<Napi::Value> held;
  };
  struct Settled {
    uint64_t id;
    Status status;
    MakeValue make_value;
  };

  void settle(uint64_t id, const Status& status, MakeValue make_value);
  static void on_wake(napi_env env, napi_value, void* context, void*);
  void settle_list(napi_env env);

  // Of the JavaScript thread.
  std::unordered_map<uint64_t, Pending> pending_;
  uint64_t next_id_ = 0;

  // Of all threads.
  std::mutex mutex_;
  std::vector<Settled> settled_;
  bool is_closed_ = false;
  napi_threadsafe_function wake_ = nullptr;
};

// The Error that JavaScript gets; a null value where the environment cannot make one any more.
napi_value make_failure(napi_env env, const Status& status);

}  // namespace lockstep
