// Groups, and the thread that runs them for non-blocking communicators.
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "communicator.h"

namespace stand_in {

struct Group {
  int depth = 0, error = ncclSuccess;
  std::vector<std::unique_ptr<Operation>> operations;
  std::vector<Job> jobs;
  std::vector<std::pair<Comm*, bool>> endings;  // with true: by abort
};
static thread_local Group group;

// What was collected, and its communicators, each once.
struct Batch {
  std::vector<std::unique_ptr<Operation>> operations;
  std::vector<Job> jobs;
  std::vector<Comm*> comms;
};

static void add_comm(std::vector<Comm*>& comms, Comm* comm) {
  if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
}

// The sends and receives of a group advance together: they become one operation of their communicator and stream.
static std::vector<std::unique_ptr<Operation>> fuse(std::vector<std::unique_ptr<Operation>> operations) {
  std::vector<std::unique_ptr<Operation>> fused;
  for (auto& operation : operations) {
    auto same = std::find_if(fused.begin(), fused.end(), [&](auto& other) {
      return !other->transfers.empty() && other->comm == operation->comm && other->stream == operation->stream;
    });
    if (operation->transfers.empty() || same == fused.end()) fused.push_back(std::move(operation));
    else (*same)->transfers.push_back(operation->transfers[0]);
  }
  return fused;
}

// As in NCCL: a rank cannot send to itself outside of a group, or without the receive beside it.
static int check_self_transfers(const std::vector<std::unique_ptr<Operation>>& operations) {
  for (auto& operation : operations) {
    int balance = 0;
    for (auto& transfer : operation->transfers) {
      if (transfer.peer == operation->comm->rank) balance += transfer.is_send ? 1 : -1;
    }
    Comm* comm = operation->comm;
    if (balance > 0) return failure(comm, ncclInvalidUsage, "Trying to send to self without a matching recv");
    if (balance < 0) return failure(comm, ncclInvalidUsage, "Trying to recv to self without a matching send");
  }
  return ncclSuccess;
}

static int run_jobs(std::vector<Job>& jobs) {
  std::vector<int> results(jobs.size());
  std::vector<std::thread> threads;
  // Beside each other: the initialisations of several ranks in one group wait for one another.
  for (size_t i = 1; i < jobs.size(); i++) threads.emplace_back([&, i] { results[i] = jobs[i].run(); });
  if (!jobs.empty()) results[0] = jobs[0].run();
  for (auto& thread : threads) thread.join();
  for (int result : results) {
    if (result) return result;
  }
  return ncclSuccess;
}

static int run(Batch& batch) {
  int result = run_jobs(batch.jobs);
  for (auto& operation : batch.operations) {
    if (!result) result = launch(std::move(operation));
  }
  return result;
}

static void settle(const std::vector<Comm*>& comms, int result) {
  for (Comm* comm : comms) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (comm->state == ncclInProgress) comm->state = result;
    comm->jobs--;
    comm->changed.notify_all();
  }
}

static int issue(std::unique_ptr<Batch> batch) {
  batch->operations = fuse(std::move(batch->operations));
  if (const int bad = check_self_transfers(batch->operations)) return bad;
  for (auto& operation : batch->operations) add_comm(batch->comms, operation->comm);
  for (auto& job : batch->jobs) add_comm(batch->comms, job.comm);
  bool is_blocking = true;
  for (Comm* comm : batch->comms) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    is_blocking = is_blocking && comm->is_blocking;
    comm->jobs++;
    comm->state = ncclInProgress;
  }
  // In the order of the calls, which all ranks share.
  for (auto& operation : batch->operations) {
    operation->number = operation->comm->launched++;
    if (operation->transfers.empty()) operation->header.sequence = operation->comm->collectives++;
  }
  if (is_blocking) {
    const std::vector<Comm*> comms = batch->comms;
    const int result = run(*batch);
    settle(comms, result);
    return result;
  }
  std::thread([batch = std::move(batch)] {
    // The work comes to its stream only now: who does not wait for the communicator to leave ncclInProgress notices.
    usleep(number("STANDIN_NCCL_LAUNCH_DELAY_US", 200));
    const int result = run(*batch);
    settle(batch->comms, result);
  }).detach();
  return ncclInProgress;
}

int submit(Job job) {
  if (group.depth) {
    group.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(std::move(job));
  return issue(std::move(batch));
}

int submit(std::unique_ptr<Operation> operation) {
  if (group.depth) {
    group.operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  auto batch = std::make_unique<Batch>();
  batch->operations.push_back(std::move(operation));
  return issue(std::move(batch));
}

int refuse(int result) {
  if (group.depth && !group.error) group.error = result;
  return result;
}

bool is_in_group() { return group.depth > 0; }

void end_with_group(Comm* comm, bool by_abort) { group.endings.emplace_back(comm, by_abort); }

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT ncclResult_t ncclGroupStart() {
  STANDIN_NCCL_CALL(ncclGroupStart);
  group.depth++;
  return ncclSuccess;
}

STANDIN_EXPORT ncclResult_t ncclGroupEnd() {
  if (!group.depth) return failure(nullptr, ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth) return ncclSuccess;
  Group ended = std::move(group);
  group = Group();
  if (const int forced = forced_result("STANDIN_NCCL_FAIL", "ncclGroupEnd")) ended.error = forced;
  if (ended.error) return ended.error;
  // All are told before any is waited for.
  for (auto& [comm, by_abort] : ended.endings) {
    if (by_abort) begin_abort(comm);
  }
  for (auto& [comm, by_abort] : ended.endings) {
    if (by_abort) end_abort(comm);
    else destroy(comm);
  }
  if (ended.operations.empty() && ended.jobs.empty()) return ncclSuccess;
  auto batch = std::make_unique<Batch>();
  batch->operations = std::move(ended.operations);
  batch->jobs = std::move(ended.jobs);
  return issue(std::move(batch));
}
