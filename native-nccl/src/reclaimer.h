// The thread for driver calls that may wait for the device, as cuMemFree does. It may hang behind a hung collective;
// the engine thread, which has to abort that, may not. Left behind, it keeps what it needs alive.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "abi.h"

namespace lockstep {

class Reclaimer {
 public:
  ~Reclaimer();  // does not wait
  // @throws std::system_error where the process can have no more threads
  void start(CUcontext context);
  void post(std::function<void()> job);
  // Jobs posted before still run.
  void stop();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    bool is_stopped = false;
  };
  static void run(const std::shared_ptr<State>& state, CUcontext context);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep
