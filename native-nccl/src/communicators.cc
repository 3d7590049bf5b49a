#include "communicators.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

constexpr double async_poll_ms = 5;

// What the other works of a communicator get when one of them, or it, has failed.
Status consequence(const Status& why) {
  if (why.code == Code::Aborted || why.code == Code::Closed || why.is_device_lost) return why;
  Status status = make_status(Code::Aborted, "the communicator was aborted after: " + why.message);
  status.call = why.call;
  status.result = why.result;
  status.detail = why.detail;
  return status;
}

}  // namespace

std::string Communicator::describe() const {
  return "communicator " + name + ", rank " + std::to_string(rank) + " of " + std::to_string(size);
}

HelperCall::HelperCall(CUcontext context, std::function<void()> call, double limit_ms)
    : deadline_(clock_ms() + limit_ms) {
  try {
    std::thread([context, call = std::move(call), has_returned = has_returned_] {
      cuda().cuCtxSetCurrent(context);
      call();
      has_returned->store(true, std::memory_order_release);
    }).detach();
  } catch (const std::system_error& error) {
    // As a call that does not return.
    deadline_ = 0;
    no_thread_ = error.what();
  }
}

bool HelperCall::is_expired() const { return clock_ms() > deadline_; }

Status HelperCall::why_expired() const {
  if (no_thread_.empty()) return make_status(Code::Timeout, "NCCL did not return; the communicator is leaked");
  const std::string words = "the process can have no more threads, NCCL was not called, the communicator is leaked";
  return make_status(Code::Unavailable, words + ": " + no_thread_);
}

struct Communicators::Abort {
  std::vector<CommRef> communicators;
  // Held until the abort has returned, as kernels may use their memory until then.
  std::vector<WorkRef> works;
  std::vector<Flight> flights;
  std::unique_ptr<HelperCall> call;
};

void Communicators::add(const CommRef& communicator) { all_.push_back(communicator); }

void Communicators::remove(const CommRef& communicator) {
  all_.erase(std::remove(all_.begin(), all_.end(), communicator), all_.end());
}

void Communicators::fail(const CommRef& communicator, const Status& why, const WorkRef& culprit) {
  // NCCL launches kernels too, and may be the first to be told that the device is lost; then all fail with that.
  if (why.code == Code::Nccl && why.result == ncclUnhandledCudaError) engine_.ask_device();
  if (communicator->state > Communicator::Finalizing) return;
  communicator->state = Communicator::Failed;
  communicator->why = consequence(why);
  failed_.push_back(communicator);
  for (const WorkRef& work : engine_.unfinished_works()) {
    if (work->communicator != communicator) continue;
    failed_works_.push_back(work);
    if (work->child && work->is_child_there) fail(work->child, why, nullptr);
    work->finish(work == culprit ? why : with_context(work->what(), communicator->why));
  }
}

void Communicators::fail_all(const Status& why) {
  for (const CommRef& communicator : std::vector<CommRef>(all_)) fail(communicator, why, nullptr);
}

void Communicators::start_aborts() {
  if (failed_.empty()) return;
  auto abort = std::make_shared<Abort>();
  abort->communicators.swap(failed_);
  abort->works.swap(failed_works_);
  std::vector<ncclComm_t> handles;
  for (const CommRef& communicator : abort->communicators) {
    if (communicator->handle) handles.push_back(communicator->handle);
    for (Flight& flight : engine_.take_flights(*communicator)) abort->flights.push_back(std::move(flight));
  }
  mark_memory(*abort);
  auto call = [handles] {
    if (handles.size() > 1) nccl().ncclGroupStart();
    for (ncclComm_t handle : handles) nccl().ncclCommAbort(handle);
    if (handles.size() > 1) nccl().ncclGroupEnd();
  };
  abort->call = std::make_unique<HelperCall>(engine_.context, call, engine_.limits.abort_ms);
  engine_.watch([this, abort] {
    if (!abort->call->has_returned() && !abort->call->is_expired()) return Step::Again;
    finish_abort(abort);
    return Step::Done;
  });
}

void Communicators::finish_abort(const std::shared_ptr<Abort>& abort) {
  bool has_returned = abort->call->has_returned();
  for (const CommRef& communicator : abort->communicators) {
    communicator->state = Communicator::Dead;
    if (has_returned) communicator->handle = nullptr;
    else communicator->end = abort->call->why_expired();
    remove(communicator);
  }
  if (!has_returned) {
    leak(abort->communicators.size());
    left_behind_.push_back(abort);
    return;
  }
  // A split that was cut off may have left a child.
  for (const WorkRef& work : abort->works) {
    if (work->child && work->child->handle && !work->is_child_there) {
      work->is_child_there = true;
      fail(work->child, work->communicator->why, nullptr);
    }
  }
  // NCCL may have put a kernel on the stream since it began.
  mark_memory(*abort);
}

// Who uses the memory next, its owner or another, waits for what is on the communication stream now.
void Communicators::mark_memory(const Abort& abort) {
  MarkRef mark;
  if (engine_.is_lost() || !engine_.track(comm_stream, nullptr, {}, &mark).ok()) return;
  for (const WorkRef& work : abort.works) {
    for (const Operation& operation : work->operations) {
      if (operation.send) operation.send->hazards.add(mark);
      if (operation.recv) operation.recv->hazards.add(mark);
    }
  }
}

ncclResult_t Communicators::poll(const Communicator& communicator, Status* status) {
  ncclResult_t async = ncclSuccess;
  ncclResult_t result = nccl().ncclCommGetAsyncError(communicator.handle, &async);
  if (result == ncclSuccess) result = async;
  if (is_failure(result)) {
    *status = nccl_status("ncclCommGetAsyncError", result, communicator.handle);
  }
  return result;
}

void Communicators::poll_async_errors() {
  double now = clock_ms();
  if (now < next_poll_ms_) return;
  next_poll_ms_ = now + async_poll_ms;
  for (const CommRef& communicator : std::vector<CommRef>(all_)) {
    if (communicator->state != Communicator::Ready || communicator->is_launching || !communicator->in_flight) continue;
    Status status;
    poll(*communicator, &status);
    if (status.ok()) continue;
    // The oldest is the one on the device now.
    WorkRef culprit;
    for (const WorkRef& work : engine_.unfinished_works()) {
      if (!culprit && work->communicator == communicator) culprit = work;
    }
    fail(communicator, with_context(culprit ? culprit->what() : communicator->describe(), status), culprit);
  }
}

}  // namespace lockstep
