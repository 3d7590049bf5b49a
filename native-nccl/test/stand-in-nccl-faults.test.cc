// What the stand-in of NCCL does when ranks fail or do not fit together.
#include <atomic>
#include <cstring>

#include "stand-in-world.h"

using namespace world;

static bool says(ncclComm_t comm, const char* words) { return std::strstr(ncclGetLastError(comm), words) != nullptr; }

static ncclResult_t sum(ncclComm_t comm, CUdeviceptr buffer, size_t count, CUstream stream) {
  return ncclAllReduce(host(buffer), host(buffer), count, ncclFloat32, ncclSum, comm, stream);
}

// The outputs of an operation that was aborted.
static bool is_spoilt(Device& device, CUdeviceptr buffer, size_t count) {
  return device.download<unsigned>(buffer, count) == std::vector<unsigned>(count, 0xFFFFFFFF);
}

// Within a time that is only for hangs.
static bool reaches(ncclComm_t comm, int state) {
  for (int i = 0; i < 10000 && state_of(comm) != state; i++) sleep_ms(1);
  return state_of(comm) == state;
}

static bool stays(ncclComm_t comm, int state, int milliseconds = 60) {
  sleep_ms(milliseconds);
  return state_of(comm) == state;
}

TEST("initialisation hangs while a rank is missing, until it is aborted") {
  in_threads(1, {}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = begin(2, id, 0);
    CHECK(stays(comm, ncclInProgress));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
}

TEST("different calls hang until all abort; the outputs are spoilt") {
  in_threads(2, {}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>(3, 1));
    CHECK(sum(comm, buffer, rank + 1, device.stream) == ncclInProgress);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(stays(comm, ncclSuccess));
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(is_spoilt(device, buffer, rank + 1));
  });
}

TEST("different calls are an error where that is asked for; the operation hangs all the same") {
  in_threads(2, {{"STANDIN_NCCL_MISMATCH", "error"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>(2, 1));
    const int issued = ncclAllReduce(host(buffer), host(buffer), 2, ncclFloat32, rank, comm, device.stream);
    CHECK(issued == ncclInProgress);
    CHECK(reaches(comm, ncclInvalidUsage));
    CHECK(says(comm, "different operations"));
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInvalidUsage);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_SUCCESS);
  });
}

TEST("an abort is not seen by the other rank, whose operation hangs") {
  in_threads(2, {}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>{1});
    if (rank == 0) return CHECK(ncclCommAbort(comm) == ncclSuccess);
    sum(comm, buffer, 1, device.stream);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(stays(comm, ncclSuccess));
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(is_spoilt(device, buffer, 1));
  });
}

// Rank 1 of 2 is killed while rank 0 is in an operation, or has none.
static void kill_peer(const char* mode, bool in_operation, int state) {
  setenv("STANDIN_NCCL_PEER_DEATH", mode, 1);
  int is_ready[2];
  CHECK(pipe(is_ready) == 0);
  in_ranks(2, {}, [&](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    char byte = 0;
    if (rank == 1) {
      CHECK(read(is_ready[0], &byte, 1) == 1);
      _exit(0);
    }
    if (in_operation) {
      CHECK(sum(comm, device.upload(std::vector<float>{1}), 1, device.stream) == ncclInProgress);
      CHECK(settle(comm) == ncclSuccess);
    }
    CHECK(write(is_ready[1], &byte, 1) == 1);
    CHECK(state ? reaches(comm, state) : stays(comm, state, 100));
    if (state) CHECK(says(comm, "rank 1 closed its connection"));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_SUCCESS);
  });
  close(is_ready[0]), close(is_ready[1]);
  unsetenv("STANDIN_NCCL_PEER_DEATH");
}

TEST("a dead peer is an asynchronous error, in an operation and between two; or nothing is seen of it") {
  kill_peer("error", true, ncclRemoteError);
  kill_peer("error", false, ncclRemoteError);
  kill_peer("hang", true, ncclSuccess);
}

TEST("the death of the process that made the id is seen too") {
  // The hub lives in rank 0 here; the id goes through a pipe.
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  const Environment environment{{"STANDIN_CUDA_DEVICES", "2"}};
  const pid_t first = start(environment, [&] {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    CHECK(write(pipe_ends[1], &id, sizeof id) == sizeof id);
    Device device(0);
    connect(2, id, 0);
    sleep_ms(30);
    _exit(0);
  });
  in_process(environment, [&] {
    ncclUniqueId id;
    CHECK(read(pipe_ends[0], &id, sizeof id) == sizeof id);
    Device device(1);
    ncclComm_t comm = connect(2, id, 1);
    CHECK(reaches(comm, ncclRemoteError));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
  finish(first);
}

TEST("hanging at a sequence number, on one rank, and an asynchronous error at one") {
  in_threads(2, {{"STANDIN_NCCL_HANG_SEQUENCE", "1"}, {"STANDIN_NCCL_HANG_RANK", "1"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>{1});
    complete(sum(comm, buffer, 1, device.stream), comm, device.stream);
    sum(comm, buffer, 1, device.stream);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(stays(comm, ncclSuccess));
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(is_spoilt(device, buffer, 1));
  });
  in_threads(2, {{"STANDIN_NCCL_ASYNC_ERROR", "3:1:0"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>{1});
    complete(sum(comm, buffer, 1, device.stream), comm, device.stream);
    sum(comm, buffer, 1, device.stream);
    CHECK(reaches(comm, rank == 0 ? ncclInternalError : ncclSuccess));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
}

TEST("aborting one of two hung communicators waits for the other; aborting both in a group does not") {
  for (bool in_group : {false, true}) {
    in_threads(1, {}, [&](int, auto& id) {
      Device device(0);
      CUstream other = device.new_stream();
      ncclUniqueId second_id;
      ncclGetUniqueId(&second_id);
      setenv("STANDIN_NCCL_HANG_SEQUENCE", "0", 1);
      ncclComm_t first = connect(1, id, 0), second = connect(1, second_id, 0);
      CUdeviceptr buffer = device.allocate(8);
      sum(first, buffer, 1, device.stream);
      sum(second, buffer + 4, 1, other);
      CHECK(settle(first) == ncclSuccess);
      CHECK(settle(second) == ncclSuccess);
      std::atomic<bool> is_aborted{false};
      std::thread helper([&] {
        if (in_group) ncclGroupStart();
        ncclCommAbort(first);
        if (in_group) ncclCommAbort(second);
        if (in_group) CHECK(ncclGroupEnd() == ncclSuccess);
        is_aborted = true;
      });
      sleep_ms(80);
      CHECK(is_aborted == in_group);
      if (!in_group) ncclCommAbort(second);
      helper.join();
    });
  }
}

TEST("an abort can be made to take long") {
  in_threads(1, {{"STANDIN_NCCL_ABORT_HANG_MS", "80"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(1, id, rank);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(80));
  });
}

TEST("operations on a freed buffer fail, and without an order they race") {
  Reports reports;
  in_threads(1, {{"STANDIN_CUDA_REPORT", reports.path}}, [](int rank, auto& id) {
    Device device(rank);
    CUstream other = device.new_stream();
    ncclComm_t comm = connect(1, id, rank);
    CUdeviceptr buffer = device.allocate(4);
    cuMemsetD8Async(buffer, 0, 4, other);
    complete(sum(comm, buffer, 1, device.stream), comm, device.stream);
    // Of what it reads, and of what it writes.
    CHECK(standin_cuda_race_count() == 2);
    cuMemFree_v2(buffer);
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInProgress);
    settle(comm);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    // After a sticky error nothing can be launched, and an abort still returns.
    sum(comm, buffer, 1, device.stream);
    CHECK(settle(comm) == ncclUnhandledCudaError);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
  CHECK(reports.mention("RACE: ncclAllReduce"));
  CHECK(reports.mention("USE-AFTER-FREE: ncclAllReduce"));
}

TEST("two communicators in a different order on two ranks hang, on one stream or with serial streams") {
  for (bool is_serial : {false, true}) {
    std::atomic<int> looked{0};
    in_threads(2, {{"STANDIN_CUDA_STREAMS", is_serial ? "serial" : ""}}, [&](int rank, auto& id) {
      Device device(rank);
      ncclComm_t parent = connect(2, id, rank), child = nullptr;
      CHECK(ncclCommSplit(parent, 0, rank, &child, nullptr) == ncclInProgress);
      CHECK(settle(parent) == ncclSuccess);
      CHECK(settle(child) == ncclSuccess);
      CUstream second_stream = is_serial ? device.new_stream() : device.stream;
      ncclComm_t first = rank ? child : parent, second = rank ? parent : child;
      CUdeviceptr buffer = device.allocate(8);
      sum(first, buffer, 1, device.stream);
      CHECK(settle(first) == ncclSuccess);
      sum(second, buffer + 4, 1, second_stream);
      CHECK(settle(second) == ncclSuccess);
      sleep_ms(60);
      CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
      // The other rank looks first: an abort of the first here lets the second go on there.
      looked.fetch_add(1);
      while (looked < 2) sleep_ms(1);
      ncclGroupStart();
      ncclCommAbort(first);
      ncclCommAbort(second);
      CHECK(ncclGroupEnd() == ncclSuccess);
    });
  }
}
