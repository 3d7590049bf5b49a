// The state of an open device, and its thread: a queue of commands, what is in flight on the streams, and jobs that are
// polled beside the queue. engine.h has what others may do with it.
//
// A command is a step that the thread calls until it says Done; the commands behind it wait. So a step never waits
// itself, and nothing that may hang (an abort, a free) is called on this thread.
#pragma once
#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "communicators.h"
#include "engine.h"
#include "flight-recorder.h"
#include "kernels.h"
#include "limits.h"
#include "marks.h"
#include "reclaimer.h"
#include "staging.h"
#include "work.h"

namespace lockstep {

enum class Step { Done, Again };

// Open with other limits than those of engine.h; for tests.
EngineRef open_device_with(int index, const std::string& ptx, const Limits& limits, Status* status);

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(int index, CUdevice device, CUcontext context, const Limits& limits);

  // Streams, staging, kernels; the context must be current.
  Status open(const std::string& ptx);
  // The threads: all, or none, and then everything that `open` made is freed.
  Status start();

  // From any thread. `work` may be null; a step whose work is finished is not called any more. False: the device is
  // closed, and the work was finished with that.
  bool post(WorkRef work, std::function<Step()> step);
  // Before all that is queued, between two steps; not at all once the thread has ended.
  void post_urgent(std::function<void()> action);
  // Not Ok: the device is lost or closed.
  Status condition() const;
  bool is_busy() const;
  Stats stats() const;
  void close(Completion completion);

  // The rest is for steps, jobs and actions, on the engine thread.

  CUstream stream(Stream index) const { return streams_[index]; }
  bool has_room(Stream index) const { return flights_[index].size() < limits.in_flight; }
  // Nothing is in flight, as far as the last poll knows.
  bool has_drained() const;
  // A mark behind what was just put on the stream. `work` finishes when the stream has passed it; until then it and the
  // blocks are held.
  Status track(Stream index, WorkRef work, std::vector<BlockRef> blocks, MarkRef* mark);
  // Polls `job` until it says Done.
  void watch(std::function<Step()> job) { jobs_.push_back(std::move(job)); }
  // Notes a sticky error: then everything fails with it, now and later.
  Status checked(const char* call, CUresult result);
  void lose(const Status& why);
  // Asks the device, where somebody else has met an error of CUDA's: after a sticky one it is lost when this returns.
  void ask_device();
  bool is_lost() const;
  // An error of a command that nobody waits for: the next work that takes it fails with it.
  void defer(const Status& error);
  Status take_deferred();

  // In the order in which they were posted; those that were finished lately are among them.
  std::vector<WorkRef> posted_works() const;
  std::vector<WorkRef> unfinished_works() const;
  // Those of the communicator, no more in flight then.
  std::vector<Flight> take_flights(const Communicator& communicator);

  const int index;
  const CUdevice device;
  const CUcontext context;
  const Limits limits;
  const std::shared_ptr<MarkPool> marks = std::make_shared<MarkPool>();
  const std::shared_ptr<Allocator> allocator = std::make_shared<Allocator>();
  const std::shared_ptr<FlightRecorder> recorder = std::make_shared<FlightRecorder>();
  Reclaimer reclaimer;
  Kernels kernels;
  Staging staging;
  Communicators communicators{*this};

 private:
  struct Command {
    WorkRef work;
    std::function<Step()> step;
  };

  void run();
  // On a thread of its own, beside the one of `run`, which may hang.
  void watch_over();
  void answer_overdue();
  bool run_urgent();
  bool run_queue();
  bool run_step(Command& command);
  bool poll_flights();
  bool run_jobs();
  void finish_expired();
  void wait_for_work(bool has_progressed);
  bool has_ended() const;

  void begin_closing();
  void finish_closing();
  void free_all();

  std::array<CUstream, stream_count> streams_{};
  std::array<std::deque<Flight>, stream_count> flights_;
  std::list<std::function<Step()>> jobs_;
  Status deferred_;
  double backoff_us_ = 0, next_sweep_ms_ = 0, drain_deadline_ms_ = 0;
  bool is_closing_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_, closing_;
  std::deque<Command> queue_;
  std::deque<std::function<void()>> urgent_;
  std::vector<WorkRef> works_;  // posted with a step, and perhaps finished since
  std::vector<Completion> close_completions_;
  Status lost_;
  uint64_t heartbeat_ = 0;
  size_t in_flight_ = 0;
  bool is_busy_ = false, is_accepting_ = true, has_thread_ended_ = false, is_clean_ = false, is_closed_ = false;
};

}  // namespace lockstep
