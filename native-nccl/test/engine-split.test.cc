// Communicators that are split from others.
#include "engine-ranks.h"

using namespace ranks;

constexpr size_t count = 100;

TEST("a split by color and key makes communicators whose ranks follow the keys; color -1 takes no part") {
  in_processes(4, [](Rank& self) {
    self.start();
    CommRef child, none;
    // Ranks 0 and 2, 1 and 3, each in reverse order.
    CHECK(self.split(self.world, self.rank % 2, -self.rank, &child).ok());
    CHECK(child && size_of(child) == 2 && rank_of(child) == (self.rank < 2 ? 1 : 0));
    BlockRef block = self.filled(count, static_cast<float>(self.rank));
    CHECK(self.all_reduce(block, count, 3000, child).get().ok());
    CHECK(self.download(block, count)[3] == (self.rank % 2 ? 4 : 2));
    CHECK(self.split(self.world, self.rank == 0 ? -1 : 5, self.rank, &none).ok());
    CHECK((none == nullptr) == (self.rank == 0));
    if (none) CHECK(size_of(none) == 3);
    // The parent goes on.
    CHECK(self.all_reduce(block, count).get().ok());
    for (const CommRef& comm : {child, none, self.world}) {
      if (comm) CHECK(self.destroy(comm).ok());
    }
    CHECK(self.close().ok());
  });
}

TEST("a split waits until nothing of the parent is in flight") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    Later done = self.all_reduce(block, count);
    CommRef child;
    CHECK(self.split(self.world, 0, self.rank, &child).ok());
    CHECK(done.count() == 1 && done.get().ok());
    CHECK(self.all_reduce(block, count, 3000, child).get().ok());
    CHECK(self.download(block, count)[0] == 4);
  }, {{{"STANDIN_NCCL_OP_DELAY_US", "30000"}, {"STANDIN_NCCL_LAUNCH_DELAY_US", "10000"}}});
}

TEST("a split that a rank does not call times out and takes the parent with it") {
  in_processes(2, [](Rank& self) {
    self.start();
    if (self.rank == 1) return self.meet();
    BlockRef block = self.filled(count, 1);
    CommRef child;
    Status status = self.split(self.world, 0, 0, &child, 200);
    CHECK(status.code == Code::Timeout);
    CHECK(contains(status.message, "split of communicator world, rank 0 of 2 into child"));
    CHECK(child == nullptr);
    CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    CHECK(eventually([&] { return stats(self.engine).in_flight == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
    self.meet();
    CHECK(self.close().ok());
  });
}

static std::atomic<int> aborted{0};
static ncclResult_t (*real_abort)(ncclComm_t);
static ncclResult_t (*real_poll)(ncclComm_t, ncclResult_t*);
static ncclComm_t parent_handle;
static ncclResult_t count_abort(ncclComm_t comm) {
  aborted++;
  return real_abort(comm);
}
static ncclResult_t fail_child(ncclComm_t comm, ncclResult_t* error) {
  ncclResult_t result = real_poll(comm, error);
  if (comm != parent_handle) *error = ncclSystemError;
  return result;
}
static ncclResult_t hang_child(ncclComm_t comm, ncclResult_t* error) {
  ncclResult_t result = real_poll(comm, error);
  if (comm != parent_handle) *error = ncclInProgress;
  return result;
}

static void break_child(decltype(&fail_child) poll, Code expected) {
  in_processes(2, [=](Rank& self) {
    self.start();
    real_abort = nccl().ncclCommAbort;
    real_poll = nccl().ncclCommGetAsyncError;
    parent_handle = self.world->handle;
    nccl().ncclCommAbort = count_abort;
    nccl().ncclCommGetAsyncError = poll;
    CommRef child;
    CHECK(self.split(self.world, 0, self.rank, &child, 300).code == expected);
    CHECK(child == nullptr);
    CHECK(eventually([] { return aborted == 2; }));
    BlockRef block = self.filled(count, 1);
    CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    self.meet();
    CHECK(self.close().ok());
  });
}

TEST("a child that fails to begin is aborted together with its parent") { break_child(fail_child, Code::Nccl); }

TEST("a child that does not begin in the time of the split is aborted together with its parent") {
  break_child(hang_child, Code::Timeout);
}
