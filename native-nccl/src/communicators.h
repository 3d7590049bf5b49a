// The communicators of a device: their failures and what follows. On the engine thread, but where said.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "library.h"
#include "marks.h"
#include "work.h"

namespace lockstep {

class Communicator {
 public:
  // Initialising ends as Ready. Then either Finalizing, Destroying, Dead, or from any of the first three Failed, Dead.
  enum State { Initialising, Ready, Finalizing, Destroying, Failed, Dead };

  Communicator(EngineRef engine, std::string name) : engine(std::move(engine)), name(std::move(name)) {}
  // 'communicator world, rank 0 of 4'.
  std::string describe() const;

  const EngineRef engine;
  const std::string name;
  // Known before anybody else has a reference.
  int rank = 0, size = 0;
  // From any thread: of the next collective.
  std::atomic<uint64_t> next_sequence{0};

  State state = Initialising;
  ncclComm_t handle = nullptr;
  // Why it cannot be used, from Finalizing on.
  Status why;
  // What came of destroying or aborting it, when it is Dead.
  Status end;
  size_t in_flight = 0;
  // A step polls it; nobody else may, since polling joins NCCL's own thread.
  bool is_launching = false;
};

// Something on a stream, and what it needs until the stream has passed the mark.
struct Flight {
  MarkRef mark;
  WorkRef work;
  std::vector<BlockRef> blocks;
};

// A library call that may hang, on a thread of its own.
class HelperCall {
 public:
  HelperCall(CUcontext context, std::function<void()> call, double limit_ms);
  bool has_returned() const { return has_returned_->load(std::memory_order_acquire); }
  bool is_expired() const;
  // Of one that has expired.
  Status why_expired() const;

 private:
  const std::shared_ptr<std::atomic<bool>> has_returned_ = std::make_shared<std::atomic<bool>>(false);
  double deadline_;
  std::string no_thread_;
};

class Communicators {
 public:
  explicit Communicators(Engine& engine) : engine_(engine) {}

  void add(const CommRef&);
  void remove(const CommRef&);
  // No more use of it: `culprit` (or none) fails with `why`, its other works as aborted because of that, and NCCL's
  // abort is begun by start_aborts. Nothing happens where it has failed or ended before.
  void fail(const CommRef&, const Status& why, const WorkRef& culprit);
  void fail_all(const Status& why);
  // Aborts all that have failed since the last call, together: one after the other would deadlock, since an abort frees
  // memory, which waits for the whole device.
  void start_aborts();
  // ncclSuccess, ncclInProgress, or what went wrong, of which `status` has the words.
  static ncclResult_t poll(const Communicator&, Status* status);
  void poll_async_errors();
  // Of what did not return in time.
  void leak(size_t count) { leaked_ += count; }
  size_t leaked() const { return leaked_; }  // from any thread

 private:
  struct Abort;
  void mark_memory(const Abort& abort);
  void finish_abort(const std::shared_ptr<Abort>& abort);

  Engine& engine_;
  std::vector<CommRef> all_;
  std::vector<CommRef> failed_;
  std::vector<WorkRef> failed_works_;
  // What a kernel of a leaked communicator may still touch; kept to the end of the process.
  std::vector<std::shared_ptr<Abort>> left_behind_;
  std::atomic<size_t> leaked_{0};
  double next_poll_ms_ = 0;
};

}  // namespace lockstep
