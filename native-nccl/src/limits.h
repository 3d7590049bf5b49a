// How long the engine waits for things that may never come, and how much it takes on. Tests shorten the waits.
#pragma once
#include <cstddef>

namespace lockstep {

struct Limits {
  // For ncclCommAbort and ncclCommDestroy to return; then the communicator is left behind, with what it may touch.
  double abort_ms = 2000;
  // For work that no abort ends (kernels, copies) when the device is closed.
  double drain_ms = 500;
  // For the engine thread to come out of a call and end, beyond the two waits above; then it is left behind.
  double join_ms = 500;
  // For the driver to take memory back when the device is closed.
  double free_ms = 1000;
  // For the engine thread to show that it is alive; then works whose time is over are answered without it.
  double stall_ms = 1000;
  // For blocks in use to come free before an allocation fails; the caller's thread waits.
  double memory_patience_ms = 250;

  // On one stream. Each brings a few entries of the driver's own queue (waits, the command, its mark), which blocks the
  // calling thread when about a thousand are there: then a collective that hangs would catch the engine thread too.
  size_t in_flight = 128;
  // Of pinned memory, for transfers of ordinary host memory.
  size_t staging_slots = 4, staging_slot_bytes = size_t(8) << 20;
};

}  // namespace lockstep
