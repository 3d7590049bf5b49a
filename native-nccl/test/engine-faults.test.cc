// What becomes of a device when something goes wrong: each operation ends within its time, with an error that says
// what, where and why; nothing hangs, and what NCCL or the device may still touch is not used again.
#include <utility>

#include "../src/block.h"
#include "../src/errors.h"
#include "engine-ranks.h"

using namespace ranks;
constexpr size_t count = 1000;

TEST("a collective that a rank does not call times out; others on the communicator are aborted, later ones at once") {
  in_processes(4, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 1) {
      self.meet();
      comm_abort({self.world}, "the peers timed out");
      CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
      CHECK(self.close().ok());
      return;
    }
    double begun = clock_ms();
    Later late = self.all_reduce(block, count, 200), other = self.all_reduce(block, count);
    Status status = late.get();
    CHECK(status.code == Code::Timeout);
    for (const char* part : {"allReduce", "communicator world", "of 4", "sequence 0", "200 ms"}) {
      CHECK(contains(status.message, part));
    }
    CHECK(other.get().code == Code::Aborted);
    CHECK(contains(other.get().message, "200 ms") && contains(other.get().message, "sequence 1"));
    CHECK(clock_ms() - begun < 2000);
    status = self.all_reduce(block, count).get(500);
    CHECK(status.code == Code::Aborted && contains(status.message, "sequence 2"));
    std::vector<FlightRecord> records = flight_recorder(self.engine);
    CHECK(records.size() == 3 && records[0].state == FlightRecord::Failed && records[0].launched_ms >= 0);
    CHECK(records[0].ended_ms > records[0].launched_ms && contains(records[0].error, "200 ms"));
    self.meet();
    CHECK(self.close().ok());
    CHECK(flight_recorder(self.engine).size() == 3);
  });
}

// Rank 1 is killed; the others either hear of it from NCCL or do not.
static void lose_a_peer(const char* peer_death, Code expected) {
  in_processes(3, [=](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    self.meet();
    if (self.rank == 1) kill(getpid(), SIGKILL);
    Status status = self.all_reduce(block, count, 200).get();
    CHECK(status.code == expected);
    if (expected == Code::Nccl) {
      CHECK(status.result == ncclRemoteError && status.call == "ncclCommGetAsyncError" && !status.detail.empty());
      CHECK(contains(status.message, "remote process exited") && contains(status.message, status.detail));
    }
    CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    CHECK(self.close().ok());
  }, {{{"STANDIN_NCCL_PEER_DEATH", peer_death}}}, 1);
}

TEST("a killed peer that NCCL notices fails the operation with NCCL's error") { lose_a_peer("error", Code::Nccl); }

TEST("a killed peer that NCCL does not notice is found by the timeout") { lose_a_peer("hang", Code::Timeout); }

static std::atomic<int> frees{0};
static CUresult (*free_memory)(CUdeviceptr);
static CUresult count_free(CUdeviceptr pointer) {
  frees++;
  return free_memory(pointer);
}

TEST("memory can be released, asked for and trimmed while a collective hangs") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1), other = self.block(size_t(8) << 20);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, count, 300), trimmed;
    other.reset();
    CHECK(eventually([&] { return stats(self.engine).in_flight == 1; }));
    // Not before the collective has ended: it would wait for it, with the driver's locks held.
    free_memory = std::exchange(cuda().cuMemFree_v2, count_free);
    trim(self.engine, trimmed.completion());
    sleep_ms(50);
    uint64_t heartbeat = stats(self.engine).heartbeat;
    CHECK(trimmed.count() == 0 && frees == 0);
    CHECK(self.block(512) != nullptr);
    CHECK(eventually([&] { return stats(self.engine).heartbeat > heartbeat + 3; }));
    CHECK(hung.get().code == Code::Timeout);
    CHECK(trimmed.get().ok() && frees == 1);
    self.meet();
  });
}

TEST("an abort that hangs is left behind, with the memory that it may touch") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 1) return self.meet();
    double begun = clock_ms();
    CHECK(self.all_reduce(block, count, 150).get().code == Code::Timeout);
    CHECK(clock_ms() - begun < 1500);
    uint64_t heartbeat = stats(self.engine).heartbeat;
    block.reset();
    CHECK(eventually([&] { return stats(self.engine).leaked_communicators == 1; }));
    CHECK(stats(self.engine).heartbeat > heartbeat);
    CHECK(stats(self.engine).used_bytes > 0);
    CHECK(self.destroy(self.world).code == Code::Timeout);
    // The driver would wait for it to the end of the process.
    Later trimmed;
    trim(self.engine, trimmed.completion());
    CHECK(trimmed.get().ok());
    CHECK(self.upload(self.block(4), std::vector<float>(1)).ok());
    CHECK(self.close().ok());
    self.meet();
  }, {{{"STANDIN_NCCL_ABORT_HANG_MS", "100000"}}});
}

TEST("memory of an aborted collective is not used again before the abort has returned") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 1) return self.meet();
    CHECK(self.all_reduce(block, count, 100).get().code == Code::Timeout);
    block.reset();
    CHECK(stats(self.engine).used_bytes > 0);
    CHECK(eventually([&] { return stats(self.engine).used_bytes == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
    self.meet();
  }, {{{"STANDIN_NCCL_ABORT_HANG_MS", "200"}}});
}

TEST("memory of a collective that NCCL had not yet launched is held until the abort has returned too") {
  alone([](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    setenv("STANDIN_NCCL_LAUNCH_DELAY_US", "300000", 1);
    CHECK(self.all_reduce(block, count, 80).get().code == Code::Timeout);
    CHECK(flight_recorder(self.engine)[0].launched_ms < 0);
    block.reset();
    sleep_ms(50);
    CHECK(stats(self.engine).used_bytes > 0);
    CHECK(eventually([&] { return stats(self.engine).used_bytes == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
  });
}

TEST("two communicators in different orders end by timeout, and all abort together") {
  in_processes(2, [](Rank& self) {
    self.start();
    CommRef child;
    CHECK(self.split(self.world, 0, self.rank, &child).ok());
    BlockRef a = self.filled(count, 1), b = self.filled(count, 1);
    bool is_first = self.rank == 0;
    // The one that waits behind goes first: then the other has no peer any more.
    Later first = self.all_reduce(a, count, 300, is_first ? self.world : child);
    Later second = self.all_reduce(b, count, 100, is_first ? child : self.world);
    CHECK(first.get().code == Code::Timeout);
    CHECK(second.get().code == Code::Timeout);
    CHECK(eventually([&] { return stats(self.engine).in_flight == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
    self.meet();
    CHECK(self.close().ok());
  }, {{{"STANDIN_NCCL_PEER_DEATH", "hang"}}});
}

TEST("communicators that are aborted by one call abort together, while each hangs behind the other") {
  in_processes(2, [](Rank& self) {
    self.start();
    CommRef child;
    CHECK(self.split(self.world, 0, self.rank, &child).ok());
    BlockRef a = self.filled(count, 1), b = self.filled(count, 1);
    if (self.rank == 1) return self.meet();
    Later first = self.all_reduce(a, count), second = self.all_reduce(b, count, 3000, child);
    sleep_ms(20);
    comm_abort({self.world, child}, "enough");
    for (const Later& later : {first, second}) {
      CHECK(later.get().code == Code::Aborted && contains(later.get().message, "enough"));
    }
    CHECK(eventually([&] { return stats(self.engine).in_flight == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
    self.meet();
    CHECK(self.close().ok());
  });
}

TEST("where one rank aborts, the others end by their timeout") {
  in_processes(3, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    Later done = self.all_reduce(block, count);
    CHECK(done.get().ok());
    if (self.rank == 0) {
      comm_abort({self.world}, "only here");
      CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    } else {
      CHECK(self.all_reduce(block, count, 250).get().code == Code::Timeout);
    }
    self.meet();
    CHECK(self.close().ok());
  }, {{{"STANDIN_NCCL_PEER_DEATH", "hang"}}});
}

TEST("an init to which a peer does not come times out, and what was begun is aborted") {
  in_processes(2, [](Rank& self) {
    CHECK(self.open());
    if (self.rank == 1) return self.meet();
    double begun = clock_ms();
    Status status = self.init(200);
    CHECK(status.code == Code::Timeout && contains(status.message, "communicator world, rank 0 of 2"));
    CHECK(clock_ms() - begun < 1500);
    CHECK(eventually([&] { return stats(self.engine).in_flight == 0; }));
    CHECK(stats(self.engine).leaked_communicators == 0);
    self.meet();
    CHECK(self.close().ok());
  });
}

TEST("an init waits beside the queue: the device goes on with other things") {
  alone([](Rank& self) {
    CHECK(self.open());
    InitOptions options;
    options.size = 2;
    options.timeout_ms = 150;
    options.name = "half";
    std::memcpy(options.id, self.shared->ids[0], sizeof options.id);
    Later half;
    comm_init(self.engine, options, [done = half.completion()](const Status& status, CommRef) { done(status); });
    BlockRef block = self.filled(10, 5);
    CHECK(self.download(block, 10)[9] == 5);
    CHECK(half.count() == 0);
    CHECK(half.get().code == Code::Timeout);
  });
}

TEST("an id that was used before, a rank twice, a device twice and an id of nobody are refused in NCCL's words") {
  in_processes(2, [](Rank& self) {
    self.start();
    Status status = self.init(400);
    CHECK(!status.ok());
    // The same rank twice.
    Rank twin(0, 2, self.shared);
    twin.engine = self.engine;
    status = twin.init(1000, 1);
    CHECK(status.code == Code::Nccl && status.result == ncclInvalidUsage && !status.detail.empty());
    self.meet();
    // Both on device 0.
    Rank same(self.rank, 2, self.shared);
    if (same.open(0)) status = same.init(1000, 2);
    CHECK(status.code == Code::Nccl && contains(status.message, "Duplicate GPU"));
    CHECK(same.close().ok());
    uint8_t garbage[128] = {1, 2, 3};
    InitOptions options;
    options.size = 1;
    options.timeout_ms = 500;
    std::memcpy(options.id, garbage, sizeof garbage);
    Later refused;
    comm_init(self.engine, options, [done = refused.completion()](const Status& s, CommRef) { done(s); });
    CHECK(refused.get().code == Code::Nccl && refused.get().call == "ncclCommInitRankConfig");
    self.meet();
    CHECK(self.close().ok());
  });
}

TEST("a communicator cannot be used after destroy or abort, and both may be repeated") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    CHECK(self.all_reduce(block, count).get().ok());
    CHECK(self.destroy(self.world).ok());
    CHECK(self.destroy(self.world).ok());
    comm_abort({self.world, self.world}, "late");
    Status status = self.all_reduce(block, count).get();
    CHECK(status.code == Code::Closed && contains(status.message, "destroyed"));
    CommRef child;
    CHECK(self.split(self.world, 0, 0, &child).code == Code::Closed);
    CommRef second;
    CHECK(self.init(2000, 1, &second).ok());
    comm_abort({second}, "first reason");
    comm_abort({second}, "second reason");
    status = self.all_reduce(block, count, 1000, second).get();
    CHECK(status.code == Code::Aborted && contains(status.message, "first reason"));
    CHECK(self.destroy(second).ok());
    CHECK(self.close().ok());
    CHECK(self.close().ok());
    CHECK(self.all_reduce(block, count).get(0).code == Code::Closed);
    CHECK(self.destroy(second).code == Code::Closed);
    CHECK(self.synchronize().code == Code::Closed);
    CHECK(allocate(self.engine, 4, &status) == nullptr && status.code == Code::Closed);
  });
}

static std::atomic<int> aborts{0};
static ncclResult_t count_abort(ncclComm_t) {
  aborts++;
  return ncclSuccess;
}
static ncclResult_t finalize_slowly(ncclComm_t) { return ncclInProgress; }
static std::atomic<bool> is_finalized{false};
static ncclResult_t (*ask_nccl)(ncclComm_t, ncclResult_t*);
static ncclResult_t say_in_progress(ncclComm_t comm, ncclResult_t* error) {
  if (is_finalized) return ask_nccl(comm, error);
  *error = ncclInProgress;
  return ncclSuccess;
}

TEST("destroying a communicator again while NCCL finalizes it does not abort it") {
  alone([](Rank& self) {
    self.start();
    nccl().ncclCommAbort = count_abort;
    nccl().ncclCommFinalize = finalize_slowly;
    ask_nccl = std::exchange(nccl().ncclCommGetAsyncError, say_in_progress);
    Later first, second;
    comm_destroy(self.world, 3000, first.completion());
    comm_destroy(self.world, 3000, second.completion());
    sleep_ms(30);
    CHECK(aborts == 0 && first.count() == 0 && second.count() == 0);
    is_finalized = true;
    CHECK(first.get().ok() && second.get().ok() && aborts == 0);
    CHECK(self.close().ok());
  });
}

TEST("destroying a communicator with a collective in flight aborts it") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, count);
    CHECK(self.destroy(self.world).ok());
    CHECK(hung.get().code == Code::Closed);
    self.meet();
  });
}

TEST("errors after which CUDA says that the process must be started again count as sticky, and others do not") {
  for (int result : {4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    CHECK(is_sticky(result));
  }
  for (int result : {0, 1, 2, 201, 218, 400, 500, 600, 701, 800}) CHECK(!is_sticky(result));
}

TEST("a sticky error loses the device: everything fails with the first one, and closing still works") {
  alone([](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1), other = self.block(count * 4);
    setenv("STANDIN_CUDA_STICKY_AT", "3", 1);
    std::vector<float> values(count);
    Later last;
    for (int i = 0; i < 5; i++) copy(other, 0, block, 0, count * 4);
    download(other, 0, values.data(), count * 4, 3000, last.completion());
    Status first = last.get();
    CHECK(first.code == Code::Cuda && first.is_device_lost && first.result == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(contains(first.message, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    for (const Status& later : {self.synchronize(), self.upload(block, values), self.all_reduce(block, count).get()}) {
      CHECK(later.is_device_lost && later.message == first.message);
    }
    Status status;
    CHECK(allocate(self.engine, 4, &status) == nullptr && status.is_device_lost);
    CHECK(flight_recorder(self.engine).size() == 1);
    CHECK(self.close().ok());
  });
}

TEST("a sticky error that NCCL meets first loses the device too") {
  alone([](Rank& self) {
    self.start();
    BlockRef block = self.block(count * 4), other = self.block(count * 4);
    setenv("STANDIN_CUDA_STICKY_AT", "1", 1);
    // On a stream that the engine does not know.
    CUstream stream = nullptr;
    CHECK(cuda().cuCtxSetCurrent(self.engine->context) == CUDA_SUCCESS);
    CHECK(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuda().cuMemcpyDtoDAsync_v2(other->address, block->address, 4, stream) == CUDA_SUCCESS);
    for (int i = 0; i < 50000 && cuda().cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; i++) usleep(100);
    Status status = self.all_reduce(block, count).get();
    CHECK(status.code == Code::Cuda && status.is_device_lost && status.result == CUDA_ERROR_ILLEGAL_ADDRESS);
    Status later = self.all_reduce(block, count).get();
    CHECK(later.is_device_lost && contains(status.message, later.message));
    CHECK(self.close().ok());
  });
}

TEST("a collective that fails on an asynchronous error names the call, its words and the operation") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    CHECK(self.all_reduce(block, count).get().ok());
    Later broken = self.all_reduce(block, count), behind = self.all_reduce(block, count);
    Status first = broken.get(), second = behind.get();
    // NCCL does not say which it was; where the second meets the error while it is launched, it is taken for the cause.
    CHECK((first.code == Code::Nccl && second.code == Code::Aborted) ||
          (first.code == Code::Aborted && second.code == Code::Nccl));
    CHECK(contains(first.message, "sequence 1") && contains(second.message, "sequence 2"));
    for (const Status& status : {first, second}) {
      CHECK(status.result == ncclSystemError && contains(status.message, "unhandled system error"));
      CHECK(contains(status.message, status.call) && contains(status.message, status.detail) && !status.detail.empty());
    }
    self.meet();
    CHECK(self.close().ok());
  }, {{{"STANDIN_NCCL_ASYNC_ERROR", "2:1"}, {"STANDIN_NCCL_PEER_DEATH", "hang"}}});
}

TEST("a call that NCCL refuses fails the communicator, also in the middle of a group") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    Operation good = Rank::reduce_of(block, 10), bad = good;
    bad.dtype = 77;
    Status status = self.start_collective(self.world, {good, bad, good}).get();
    CHECK(status.code == Code::Nccl && status.call == "ncclAllReduce" && status.result == ncclInvalidArgument);
    CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    self.meet();
    // The thread's group is over: another communicator works.
    CHECK(self.init(2000, 1).ok());
    CHECK(self.all_reduce(block, count).get().ok());
    self.meet();
    CHECK(self.close().ok());
  });
}
