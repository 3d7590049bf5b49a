// One thread tells another that something is done; the other waits no longer than it can afford.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep {

class Latch {
 public:
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // False: not opened in time.
  bool wait(double limit_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double, std::milli>(limit_ms), [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

}  // namespace lockstep
