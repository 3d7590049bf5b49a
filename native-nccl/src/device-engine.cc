#include "device-engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "block.h"
#include "errors.h"

namespace lockstep {

Engine::Engine(int index, CUdevice device, CUcontext context, const Limits& limits)
    : index(index), device(device), context(context), limits(limits) {}

Status Engine::open(const std::string& ptx) {
  for (CUstream& stream : streams_) {
    if (CUresult error = cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) {
      return cuda_status("cuStreamCreate", error);
    }
  }
  Status status = staging.open(limits.staging_slots, limits.staging_slot_bytes);
  if (!status.ok()) return status;
  return kernels.load(ptx);
}

bool Engine::post(WorkRef work, std::function<Step()> step) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_accepting_) {
      if (work) works_.push_back(work);
      queue_.push_back({std::move(work), std::move(step)});
      is_busy_ = true;
      changed_.notify_all();
      return true;
    }
  }
  if (work) work->finish(with_context(work->what(), make_status(Code::Closed, "the device is closed")));
  return false;
}

void Engine::post_urgent(std::function<void()> action) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (has_thread_ended_) return;
  urgent_.push_back(std::move(action));
  is_busy_ = true;
  changed_.notify_all();
}

Status Engine::condition() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_accepting_) return make_status(Code::Closed, "the device is closed");
  return lost_;
}

bool Engine::is_busy() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_busy_;
}

Stats Engine::stats() const {
  Stats stats;
  MemoryUse use = allocator->use();
  stats.used_bytes = use.used_bytes;
  stats.reserved_bytes = use.reserved_bytes;
  stats.leaked_communicators = communicators.leaked();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stats.heartbeat = heartbeat_;
    stats.queued = queue_.size();
    stats.in_flight = in_flight_;
    if (!is_accepting_ || !lost_.ok()) return stats;
  }
  // Without the lock: the driver may have one of its own, which another thread's call holds while it waits for the
  // device, and then the engine thread must not wait too.
  cuda().cuCtxSetCurrent(context);
  cuda().cuMemGetInfo_v2(&stats.free_bytes, &stats.total_bytes);
  return stats;
}

bool Engine::has_drained() const {
  return std::all_of(flights_.begin(), flights_.end(), [](const auto& flights) { return flights.empty(); });
}

Status Engine::track(Stream index, WorkRef work, std::vector<BlockRef> blocks, MarkRef* mark) {
  Status status = checked("cuEventRecord", marks->record(index, streams_[index], mark));
  if (!status.ok()) return status;
  if (work && work->communicator) work->communicator->in_flight++;
  flights_[index].push_back({*mark, std::move(work), std::move(blocks)});
  return status;
}

Status Engine::checked(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return {};
  Status status = cuda_status(call, result);
  if (status.is_device_lost) lose(status);
  return status;
}

void Engine::lose(const Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_.ok()) return;
    lost_ = why;
  }
  communicators.fail_all(why);
  for (const WorkRef& work : unfinished_works()) work->finish(why);
}

void Engine::ask_device() { checked("cuStreamQuery", cuda().cuStreamQuery(streams_[comm_stream])); }

bool Engine::is_lost() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !lost_.ok();
}

void Engine::defer(const Status& error) {
  if (deferred_.ok()) deferred_ = error;
}

Status Engine::take_deferred() { return std::exchange(deferred_, Status{}); }

std::vector<WorkRef> Engine::posted_works() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return works_;
}

std::vector<WorkRef> Engine::unfinished_works() const {
  std::vector<WorkRef> works = posted_works();
  auto is_finished = [](const WorkRef& work) { return work->is_finished(); };
  works.erase(std::remove_if(works.begin(), works.end(), is_finished), works.end());
  return works;
}

std::vector<Flight> Engine::take_flights(const Communicator& communicator) {
  std::vector<Flight> taken;
  std::deque<Flight>& flights = flights_[comm_stream];
  auto stays = [&](const Flight& flight) { return !flight.work || flight.work->communicator.get() != &communicator; };
  auto middle = std::stable_partition(flights.begin(), flights.end(), stays);
  std::move(middle, flights.end(), std::back_inserter(taken));
  flights.erase(middle, flights.end());
  return taken;
}

}  // namespace lockstep
