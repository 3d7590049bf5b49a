// Deadlines that pass while the engine thread hangs in a call of the driver or of NCCL. Nobody can end that call, but
// whoever waits is told. The works themselves stay the engine thread's: it finishes them when it comes back.
#include <utility>

#include "device-engine.h"

namespace lockstep {

// Until the device is closed.
void Engine::answer_overdue() {
  const auto interval = std::chrono::duration<double, std::milli>(limits.stall_ms);
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (closing_.wait_for(lock, interval, [this] { return !is_accepting_; })) return;
      if (std::exchange(seen, heartbeat_) != heartbeat_) continue;
    }
    const double now = clock_ms();
    for (const WorkRef& work : unfinished_works()) {
      if (!work->is_expired(now)) continue;
      Status status = work->timeout_status();
      status.message += ": the engine thread hangs in a call of the driver or of NCCL";
      if (!work->answer(status) || !work->communicator) continue;
      // It may have ended well by then; for its caller, who tells the other ranks, it has not.
      post_urgent([this, work] {
        communicators.fail(work->communicator, work->timeout_status(), work);
        if (work->is_child_there) communicators.fail(work->child, work->timeout_status(), nullptr);
      });
    }
  }
}

}  // namespace lockstep
