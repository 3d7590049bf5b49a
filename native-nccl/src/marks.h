// Marks: points on a stream, each a recorded event. Whoever needs to know that the stream has passed a mark holds a
// reference; with the last one the event goes back to its pool. A pool makes no CUDA call but on the engine thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "abi.h"
#include "streams.h"

namespace lockstep {

class MarkPool;

class Mark {
 public:
  Mark(std::shared_ptr<MarkPool> pool, CUevent event, Stream stream, uint64_t sequence);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // CUDA_SUCCESS once the stream has passed it, CUDA_ERROR_NOT_READY before.
  CUresult query();
  // What an earlier query said; asks nobody.
  bool is_known_passed() const { return is_passed_.load(std::memory_order_acquire); }

  CUevent event() const { return event_; }
  Stream stream() const { return stream_; }
  // Grows along a stream.
  uint64_t sequence() const { return sequence_; }

 private:
  const std::shared_ptr<MarkPool> pool_;
  const CUevent event_;
  const Stream stream_;
  const uint64_t sequence_;
  std::atomic<bool> is_passed_{false};
};

using MarkRef = std::shared_ptr<Mark>;

class MarkPool : public std::enable_shared_from_this<MarkPool> {
 public:
  // On the engine thread.
  CUresult record(Stream stream, CUstream handle, MarkRef* mark);
  void give_back(CUevent event);
  // When the device is closed; marks that are still held then are never asked again.
  void destroy_events();

 private:
  std::mutex mutex_;
  std::vector<CUevent> idle_;
  uint64_t next_sequence_ = 1;
};

}  // namespace lockstep
