// What happened to the last collectives of a device. Readable from any thread, also after the device was lost or
// closed.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine.h"

namespace lockstep {

using RecordRef = std::shared_ptr<FlightRecord>;

class FlightRecorder {
 public:
  FlightRecorder();
  RecordRef add(const std::string& communicator, const std::string& label, uint64_t sequence);
  // A record that has ended stays as it is.
  void reached(const RecordRef&, FlightRecord::State, const std::string& error = "");
  std::vector<FlightRecord> read() const;

 private:
  static constexpr size_t capacity = 512;
  mutable std::mutex mutex_;
  const double opened_ms_;
  std::deque<RecordRef> records_;
};

}  // namespace lockstep
