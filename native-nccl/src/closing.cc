// The end of a device: nothing here may hang, whatever hangs on the device or in the driver.
#include <utility>

#include "device-engine.h"
#include "errors.h"
#include "latch.h"

namespace lockstep {

void Engine::close(Completion completion) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_) {
    lock.unlock();
    if (completion) completion({});
    return;
  }
  close_completions_.push_back(std::move(completion));
  if (!is_accepting_) return;
  is_accepting_ = false;
  urgent_.push_back([this] { begin_closing(); });
  changed_.notify_all();
  closing_.notify_all();
}

// On the engine thread.
void Engine::begin_closing() {
  Status closed = make_status(Code::Closed, "the device was closed");
  communicators.fail_all(closed);
  for (const WorkRef& work : unfinished_works()) work->finish(with_context(work->what(), closed));
  std::deque<Command> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(queue_);
  }
  is_closing_ = true;
  drain_deadline_ms_ = clock_ms() + limits.abort_ms + limits.drain_ms;
}

bool Engine::has_ended() const {
  if (!is_closing_) return false;
  if (clock_ms() > drain_deadline_ms_) return true;
  return jobs_.empty() && has_drained();
}

// On the watching thread, which every engine has: a process may have no more threads when it closes one.
void Engine::finish_closing() {
  auto limit = std::chrono::duration<double, std::milli>(limits.abort_ms + limits.drain_ms + limits.join_ms);
  bool is_clean;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return has_thread_ended_; });
    is_clean = is_clean_;
  }
  // Where the thread hangs in a call nobody else will finish these.
  Status closed = make_status(Code::Closed, "the device was closed");
  for (const WorkRef& work : unfinished_works()) work->finish(with_context(work->what(), closed));
  if (is_clean) {
    auto is_freed = std::make_shared<Latch>();
    reclaimer.post([engine = shared_from_this(), is_freed] {
      engine->free_all();
      is_freed->open();
    });
    is_freed->wait(limits.free_ms);
  }
  reclaimer.stop();
  std::vector<Completion> completions;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    completions.swap(close_completions_);
  }
  for (const Completion& completion : completions) {
    if (completion) completion({});
  }
}

// On the reclaimer's thread. Errors have nobody to go to: the device is not used any more.
void Engine::free_all() {
  for (const Slab& slab : allocator->take_all()) {
    cuda().cuMemFree_v2(slab.base);
    allocator->note_freed(slab);
  }
  staging.close();
  kernels.unload();
  marks->destroy_events();
  for (CUstream stream : streams_) {
    if (stream) cuda().cuStreamDestroy_v2(stream);
  }
  cuda().cuDevicePrimaryCtxRelease_v2(device);
}

}  // namespace lockstep
