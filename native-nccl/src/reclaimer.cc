#include "reclaimer.h"

#include <chrono>
#include <thread>
#include <utility>

#include "library.h"

namespace lockstep {

Reclaimer::~Reclaimer() { stop(); }

void Reclaimer::start(CUcontext context) {
  std::thread([state = state_, context] { run(state, context); }).detach();
}

void Reclaimer::post(std::function<void()> job) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->jobs.push_back(std::move(job));
  state_->changed.notify_one();
}

void Reclaimer::stop() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->is_stopped = true;
  state_->changed.notify_one();
}

void Reclaimer::run(const std::shared_ptr<State>& state, CUcontext context) {
  cuda().cuCtxSetCurrent(context);
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock<std::mutex> lock(state->mutex);
      // Not wait(): it would ask for a libstdc++ that RHEL 9 has not.
      const auto is_awake = [&] { return state->is_stopped || !state->jobs.empty(); };
      while (!state->changed.wait_for(lock, std::chrono::hours(1), is_awake)) continue;
      if (state->jobs.empty()) return;
      job = std::move(state->jobs.front());
      state->jobs.pop_front();
    }
    job();
  }
}

}  // namespace lockstep
