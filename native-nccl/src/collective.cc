// The life of a collective: queued; issued to NCCL behind the earlier uses of its blocks; launched, once NCCL says that
// it is on the stream; done, once the stream has passed it.
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

const void* pointer(const BlockRef& block, size_t offset) {
  return block ? reinterpret_cast<const void*>(block->address + offset) : nullptr;
}

ncclResult_t call_nccl(const Operation& operation, ncclComm_t comm, CUstream stream, const char** call) {
  const void* send = pointer(operation.send, operation.send_offset);
  void* recv = const_cast<void*>(pointer(operation.recv, operation.recv_offset));
  const size_t count = operation.count;
  const int dtype = operation.dtype, op = operation.op, root = operation.root;
  switch (operation.kind) {
    case Operation::AllReduce:
      *call = "ncclAllReduce";
      return nccl().ncclAllReduce(send, recv, count, dtype, op, comm, stream);
    case Operation::Broadcast:
      *call = "ncclBroadcast";
      return nccl().ncclBroadcast(send, recv, count, dtype, root, comm, stream);
    case Operation::Reduce:
      *call = "ncclReduce";
      return nccl().ncclReduce(send, recv, count, dtype, op, root, comm, stream);
    case Operation::AllGather:
      *call = "ncclAllGather";
      return nccl().ncclAllGather(send, recv, count, dtype, comm, stream);
    case Operation::ReduceScatter:
      *call = "ncclReduceScatter";
      return nccl().ncclReduceScatter(send, recv, count, dtype, op, comm, stream);
    case Operation::Send:
      *call = "ncclSend";
      return nccl().ncclSend(send, count, dtype, root, comm, stream);
    case Operation::Recv:
      *call = "ncclRecv";
      return nccl().ncclRecv(recv, count, dtype, root, comm, stream);
  }
  *call = "";
  return ncclInvalidArgument;
}

// A group that was started is ended, whatever happens in it: its state is the thread's.
Status call_all(const std::vector<Operation>& operations, ncclComm_t comm, CUstream stream) {
  const bool is_group = operations.size() > 1;
  Status status;
  auto note = [&](const char* call, ncclResult_t result) {
    if (is_failure(result) && status.ok()) status = nccl_status(call, result, comm);
  };
  if (is_group) note("ncclGroupStart", nccl().ncclGroupStart());
  if (!status.ok()) return status;
  for (const Operation& operation : operations) {
    const char* call;
    ncclResult_t result = call_nccl(operation, comm, stream, &call);
    note(call, result);
    if (is_failure(result)) break;
  }
  if (is_group) note("ncclGroupEnd", nccl().ncclGroupEnd());
  return status;
}

class Launch {
 public:
  explicit Launch(WorkRef work) : work_(std::move(work)), engine_(*work_->communicator->engine) {}

  Step step() {
    if (!is_issued_) {
      if (!is_ready()) return work_->is_finished() ? Step::Done : Step::Again;
      is_issued_ = true;
      if (!issue()) return Step::Done;
    }
    return poll();
  }

 private:
  // False: not yet, or the work has failed.
  bool is_ready() {
    const CommRef& communicator = work_->communicator;
    if (communicator->state != Communicator::Ready) {
      work_->finish(with_context(work_->what(), communicator->why));
      return false;
    }
    Status deferred = engine_.take_deferred();
    if (!deferred.ok()) {
      fail(with_context("after a failed command", deferred));
      return false;
    }
    if (!engine_.has_room(comm_stream)) return false;
    for (const Operation& operation : work_->operations) {
      if (operation.send && operation.send->open_transfers) return false;
      if (operation.recv && operation.recv->open_transfers) return false;
    }
    return true;
  }

  bool issue() {
    engine_.recorder->reached(work_->record, FlightRecord::Issued);
    CUstream stream = engine_.stream(comm_stream);
    Waits waits;
    for (const Operation& operation : work_->operations) {
      if (operation.send) operation.send->hazards.collect(false, &waits);
      if (operation.recv) operation.recv->hazards.collect(true, &waits);
    }
    Status status = engine_.checked("cuStreamWaitEvent", waits.apply(comm_stream, stream));
    if (status.ok()) status = call_all(work_->operations, work_->communicator->handle, stream);
    if (!status.ok()) return fail(status);
    work_->communicator->is_launching = true;
#ifdef LOCKSTEP_MUTATE_NO_HOLD
    work_->operations.clear();
#endif
    return true;
  }

  // An event recorded while NCCL is still at it would be passed before the collective has begun.
  Step poll() {
    const CommRef& communicator = work_->communicator;
    if (communicator->state != Communicator::Ready) return Step::Done;
    Status status;
#ifndef LOCKSTEP_MUTATE_NO_POLL
    if (Communicators::poll(*communicator, &status) == ncclInProgress) return Step::Again;
#endif
    communicator->is_launching = false;
    MarkRef mark;
    if (status.ok()) status = engine_.track(comm_stream, work_, {}, &mark);
    if (!status.ok()) {
      fail(status);
      return Step::Done;
    }
    for (const Operation& operation : work_->operations) {
      if (operation.send) operation.send->hazards.note(mark, false);
    }
    // After the reads: a block that is read and written is written.
    for (const Operation& operation : work_->operations) {
      if (operation.recv) operation.recv->hazards.note(mark, true);
    }
    engine_.recorder->reached(work_->record, FlightRecord::Launched);
    return Step::Done;
  }

  bool fail(const Status& status) {
    engine_.communicators.fail(work_->communicator, with_context(work_->what(), status), work_);
    return false;
  }

  const WorkRef work_;
  Engine& engine_;
  bool is_issued_ = false;
};

}  // namespace

void collective(const CommRef& communicator, std::vector<Operation> operations, std::string label, int64_t timeout_ms,
                Completion done) {
  const EngineRef& engine = communicator->engine;
  const uint64_t sequence = communicator->next_sequence++;
  std::string what = label + " (" + communicator->describe() + ", sequence " + std::to_string(sequence) + ")";
  auto work = std::make_shared<Work>(std::move(what), timeout_ms, std::move(done));
  work->communicator = communicator;
  work->operations = std::move(operations);
  work->recorder = engine->recorder;
  work->record = engine->recorder->add(communicator->name, label, sequence);
  auto launch = std::make_shared<Launch>(work);
  engine->post(work, [launch] { return launch->step(); });
}

int rank_of(const CommRef& communicator) { return communicator->rank; }
int size_of(const CommRef& communicator) { return communicator->size; }
EngineRef engine_of(const CommRef& communicator) { return communicator->engine; }

}  // namespace lockstep
