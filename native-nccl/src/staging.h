// Pinned host memory that the device copies from and to. Only this is ever touched by a copy in flight, never the
// caller's memory, so that a download that timed out cannot write to memory that has another use by then.
#pragma once
#include <cstddef>
#include <vector>

#include "library.h"

namespace lockstep {

class Staging {
 public:
  // When the device is opened: pinning memory later may wait for the device.
  Status open(size_t slots, size_t slot_bytes);
  // When nothing is in flight any more.
  void close();

  // Null where none is free for this direction: one direction leaves a slot to the other, as it may be stuck behind a
  // collective that hangs.
  void* take(bool is_upload);
  void give_back(void* slot, bool is_upload);
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  char* memory_ = nullptr;
  size_t slots_ = 0, slot_bytes_ = 0;
  size_t taken_[2] = {0, 0};
  std::vector<void*> free_;
};

}  // namespace lockstep
