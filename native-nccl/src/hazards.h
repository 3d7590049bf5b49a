// What a command must wait for so that accesses to a block happen in the order of the commands, whatever their streams.
#pragma once
#include <array>

#include "marks.h"

namespace lockstep {

// Of many marks, the last on each stream: waiting for it is waiting for the earlier ones.
class Waits {
 public:
  void add(const MarkRef& mark);
  // Makes `stream` wait, on the device. Its own marks need none.
  CUresult apply(Stream stream, CUstream handle) const;

 private:
  std::array<MarkRef, stream_count> last_;
};

// The last accesses of a block. On the engine thread; with a free block they pass to its next owner.
class Hazards {
 public:
  // What an access has to wait for: reads for writes, writes for all.
  void collect(bool is_write, Waits* waits) const;
  // After the access was put on its stream, behind those waits.
  void note(const MarkRef& mark, bool is_write);
  // Of something that may touch the memory up to the mark, and did not wait.
  void add(const MarkRef& mark);
  // Of a neighbour whose memory becomes one with this.
  void merge(const Hazards& other);
  // Whether the device is past all of it; asks the driver. An error of the driver counts as no.
  bool is_clear() const;

 private:
  std::array<MarkRef, stream_count> reads_, writes_;
};

}  // namespace lockstep
