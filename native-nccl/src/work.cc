#include "work.h"

#include <utility>

#include "errors.h"

namespace lockstep {

Work::Work(std::string what, int64_t timeout_ms, Completion completion)
    : what_(std::move(what)),
      timeout_ms_(timeout_ms),
      deadline_(timeout_ms == no_timeout ? std::numeric_limits<double>::infinity() : deadline_after(timeout_ms)),
      completion_(std::move(completion)) {}

bool Work::finish(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(guard_);
    if (is_finished_.exchange(true)) return false;
  }
  if (record) recorder->reached(record, status.ok() ? FlightRecord::Done : FlightRecord::Failed, status.message);
  answer(status);
  return true;
}

bool Work::answer(const Status& status) {
  Completion completion;
  {
    std::lock_guard<std::mutex> lock(guard_);
    if (std::exchange(is_answered_, true)) return false;
    completion = std::exchange(completion_, nullptr);
  }
  if (completion) completion(status);
  return true;
}

Status Work::timeout_status() const {
  return make_status(Code::Timeout, what_ + " did not finish within " + std::to_string(timeout_ms_) + " ms");
}

}  // namespace lockstep
