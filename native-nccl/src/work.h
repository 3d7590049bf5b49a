// Something asked of the engine whose end is told to the caller: exactly once, by whoever finishes it first.
#pragma once
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"
#include "engine.h"
#include "flight-recorder.h"

namespace lockstep {

// Of works that end by themselves, or watch their time themselves.
constexpr int64_t no_timeout = -1;

class Work {
 public:
  // `what` begins the messages about it.
  Work(std::string what, int64_t timeout_ms, Completion completion);

  // False where it was finished before. The completion runs on this thread, unless the work was answered before.
  bool finish(const Status& status);
  // Runs the completion, and leaves the work unfinished: for the engine it goes on. False where that was done before.
  bool answer(const Status& status);
  bool is_finished() const { return is_finished_.load(std::memory_order_acquire); }
  bool is_expired(double now) const { return now > deadline_; }
  Status timeout_status() const;
  const std::string& what() const { return what_; }

  // Runs `touch` unless the work is finished or answered; while it runs, it becomes neither. For host memory, which
  // belongs to the caller again from then on.
  template <class Touch>
  bool while_unfinished(Touch touch) {
    std::lock_guard<std::mutex> lock(guard_);
    if (is_finished() || is_answered_) return false;
    touch();
    return true;
  }

  // Where the work is one of a communicator: it fails with it, and it with the work.
  CommRef communicator;
  // Of a split, and whether NCCL has said that its handle is there.
  CommRef child;
  bool is_child_there = false;
  // An upload or download.
  bool is_transfer = false;
  // Device memory that a collective uses.
  std::vector<Operation> operations;

  std::shared_ptr<FlightRecorder> recorder;
  RecordRef record;

 private:
  const std::string what_;
  const int64_t timeout_ms_;
  const double deadline_;
  std::mutex guard_;
  std::atomic<bool> is_finished_{false};
  bool is_answered_ = false;
  Completion completion_;
};

using WorkRef = std::shared_ptr<Work>;

}  // namespace lockstep
