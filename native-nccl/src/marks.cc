#include "marks.h"

#include <utility>

#include "library.h"

namespace lockstep {

Mark::Mark(std::shared_ptr<MarkPool> pool, CUevent event, Stream stream, uint64_t sequence)
    : pool_(std::move(pool)), event_(event), stream_(stream), sequence_(sequence) {}

// The event may be recorded again while streams still wait for this mark: a wait refers to the record it met.
Mark::~Mark() { pool_->give_back(event_); }

CUresult Mark::query() {
  if (is_known_passed()) return CUDA_SUCCESS;
  CUresult result = cuda().cuEventQuery(event_);
  if (result == CUDA_SUCCESS) is_passed_.store(true, std::memory_order_release);
  return result;
}

CUresult MarkPool::record(Stream stream, CUstream handle, MarkRef* mark) {
  CUevent event = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  if (!event) {
    if (CUresult error = cuda().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) return error;
  }
  CUresult error = cuda().cuEventRecord(event, handle);
  if (error) give_back(event);
  else *mark = std::make_shared<Mark>(shared_from_this(), event, stream, next_sequence_++);
  return error;
}

void MarkPool::give_back(CUevent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(event);
}

void MarkPool::destroy_events() {
  std::vector<CUevent> idle;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    idle.swap(idle_);
  }
  for (CUevent event : idle) cuda().cuEventDestroy_v2(event);
}

}  // namespace lockstep
