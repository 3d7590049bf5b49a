#include "flight-recorder.h"

#include "clock.h"

namespace lockstep {

FlightRecorder::FlightRecorder() : opened_ms_(clock_ms()) {}

RecordRef FlightRecorder::add(const std::string& communicator, const std::string& label, uint64_t sequence) {
  auto record = std::make_shared<FlightRecord>();
  record->communicator = communicator;
  record->label = label;
  record->sequence = sequence;
  record->queued_ms = clock_ms() - opened_ms_;
  std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back(record);
  if (records_.size() > capacity) records_.pop_front();
  return record;
}

void FlightRecorder::reached(const RecordRef& record, FlightRecord::State state, const std::string& error) {
  double now = clock_ms() - opened_ms_;
  std::lock_guard<std::mutex> lock(mutex_);
  if (record->state == FlightRecord::Done || record->state == FlightRecord::Failed) return;
  record->state = state;
  if (state == FlightRecord::Issued) record->issued_ms = now;
  else if (state == FlightRecord::Launched) record->launched_ms = now;
  else record->ended_ms = now;
  record->error = error;
}

std::vector<FlightRecord> FlightRecorder::read() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FlightRecord> copies;
  for (const RecordRef& record : records_) copies.push_back(*record);
  return copies;
}

}  // namespace lockstep
