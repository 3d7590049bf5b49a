#include "staging.h"

#include "errors.h"

namespace lockstep {

Status Staging::open(size_t slots, size_t slot_bytes) {
  void* memory = nullptr;
  if (CUresult error = cuda().cuMemHostAlloc(&memory, slots * slot_bytes, 0)) {
    return with_context("no pinned memory for transfers", cuda_status("cuMemHostAlloc", error));
  }
  memory_ = static_cast<char*>(memory);
  slots_ = slots;
  slot_bytes_ = slot_bytes;
  for (size_t slot = 0; slot < slots; slot++) free_.push_back(memory_ + slot * slot_bytes);
  return {};
}

void Staging::close() {
  if (memory_) cuda().cuMemFreeHost(memory_);
  memory_ = nullptr;
  free_.clear();
}

void* Staging::take(bool is_upload) {
  if (free_.empty() || taken_[is_upload] + 1 >= slots_) return nullptr;
  void* slot = free_.back();
  free_.pop_back();
  taken_[is_upload]++;
  return slot;
}

void Staging::give_back(void* slot, bool is_upload) {
  free_.push_back(slot);
  taken_[is_upload]--;
}

}  // namespace lockstep
