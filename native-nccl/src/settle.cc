#include "settle.h"

#include <utility>

// After a worker was told to end, N-API calls fail in the middle of a list. So these use the C functions and look at
// what they return: node-addon-api would try to throw, and end the process where it cannot.

namespace lockstep {

namespace {

const char* name_of(Code code) {
  switch (code) {
    case Code::Unavailable: return "UNAVAILABLE";
    case Code::OutOfMemory: return "OUT_OF_MEMORY";
    case Code::Cuda: return "CUDA";
    case Code::Nccl: return "NCCL";
    case Code::Timeout: return "TIMEOUT";
    case Code::Aborted: return "ABORTED";
    case Code::Closed: return "CLOSED";
    case Code::Ok: break;
  }
  return "CUDA";
}

napi_value text(napi_env env, const std::string& value) {
  napi_value result = nullptr;
  napi_create_string_utf8(env, value.data(), value.size(), &result);
  return result;
}

void set(napi_env env, napi_value object, const char* name, napi_value value) {
  if (value != nullptr) napi_set_named_property(env, object, name, value);
}

}  // namespace

napi_value make_failure(napi_env env, const Status& status) {
  napi_value message = text(env, status.message), error = nullptr;
  if (message == nullptr || napi_create_error(env, text(env, name_of(status.code)), message, &error) != napi_ok) {
    return nullptr;
  }
  if (!status.call.empty()) {
    set(env, error, "call", text(env, status.call));
    napi_value result = nullptr;
    napi_create_int32(env, status.result, &result);
    set(env, error, "result", result);
  }
  if (!status.detail.empty()) set(env, error, "detail", text(env, status.detail));
  if (status.is_device_lost) {
    napi_value yes = nullptr;
    napi_get_boolean(env, true, &yes);
    set(env, error, "isDeviceLost", yes);
  }
  return error;
}

std::shared_ptr<Settler> Settler::create(Napi::Env env) {
  auto settler = std::make_shared<Settler>();
  // What the thread-safe function points to lives until the function is finalized, which may be after `close`.
  auto* context = new std::shared_ptr<Settler>(settler);
  auto finalize = [](napi_env, void*, void* hint) { delete static_cast<std::shared_ptr<Settler>*>(hint); };
  auto name = Napi::String::New(env, "lockstep-nccl");
  napi_status made = napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, finalize, context,
                                                     on_wake, &settler->wake_);
  if (made != napi_ok) {
    delete context;
    throw Napi::Error::New(env, "lockstep-nccl: no thread-safe function could be made");
  }
  napi_unref_threadsafe_function(env, settler->wake_);
  return settler;
}

Napi::Value Settler::promise(Napi::Env env, Napi::Value held, const std::function<void(Settle)>& start) {
  napi_deferred deferred = nullptr;
  napi_value promise = nullptr;
  if (napi_create_promise(env, &deferred, &promise) != napi_ok) {
    throw Napi::Error::New(env, "lockstep-nccl: no promise could be made");
  }
  uint64_t id = next_id_++;
  auto reference = held.IsEmpty() ? Napi::Reference<Napi::Value>() : Napi::Reference<Napi::Value>::New(held, 1);
  pending_.emplace(id, Pending{deferred, std::move(reference)});
  if (pending_.size() == 1) napi_ref_threadsafe_function(env, wake_);
  start([self = shared_from_this(), id](const Status& status, MakeValue make_value) {
    self->settle(id, status, std::move(make_value));
  });
  return Napi::Value(env, promise);
}

void Settler::settle(uint64_t id, const Status& status, MakeValue make_value) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  settled_.push_back({id, status, std::move(make_value)});
  // Under the lock, so that `close` cannot come between. A list that is not empty has woken the loop already.
  if (settled_.size() == 1) napi_call_threadsafe_function(wake_, nullptr, napi_tsfn_nonblocking);
}

// Without an environment: the function is being finalized, and the context may be gone.
void Settler::on_wake(napi_env env, napi_value, void* context, void*) {
  if (env == nullptr) return;
  std::shared_ptr<Settler> self = *static_cast<std::shared_ptr<Settler>*>(context);
  self->settle_list(env);
}

void Settler::settle_list(napi_env env) {
  std::vector<Settled> list;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    list.swap(settled_);
  }
  for (Settled& settled : list) {
    auto found = pending_.find(settled.id);
    if (found == pending_.end()) continue;
    napi_deferred deferred = found->second.deferred;
    pending_.erase(found);
    napi_handle_scope scope = nullptr;
    if (napi_open_handle_scope(env, &scope) != napi_ok) continue;
    napi_value value = nullptr;
    if (!settled.status.ok()) {
      value = make_failure(env, settled.status);
      if (value != nullptr) napi_reject_deferred(env, deferred, value);
    } else {
      if (settled.make_value) value = settled.make_value(env);
      else napi_get_undefined(env, &value);
      if (value != nullptr) napi_resolve_deferred(env, deferred, value);
    }
    napi_close_handle_scope(env, scope);
  }
  if (!list.empty() && pending_.empty()) napi_unref_threadsafe_function(env, wake_);
}

void Settler::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    settled_.clear();
  }
  pending_.clear();
  napi_release_threadsafe_function(wake_, napi_tsfn_release);
}

}  // namespace lockstep
