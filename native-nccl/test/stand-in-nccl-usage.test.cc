// What the stand-in of NCCL refuses.
#include <cstring>

#include "stand-in-world.h"

using namespace world;

static bool says(ncclComm_t comm, const char* words) { return std::strstr(ncclGetLastError(comm), words) != nullptr; }

static ncclResult_t sum(ncclComm_t comm, CUdeviceptr buffer, size_t count, CUstream stream) {
  return ncclAllReduce(host(buffer), host(buffer), count, ncclFloat32, ncclSum, comm, stream);
}

TEST("an operation comes to its stream only after the call: an event recorded at once comes before it") {
  in_threads(2, {{"STANDIN_NCCL_LAUNCH_DELAY_US", "20000"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(2, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>{1});
    CUevent event = device.new_event();
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInProgress);
    cuEventRecord(event, device.stream);
    CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
    CHECK(device.template download<float>(buffer, 1)[0] == 1);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(device.template download<float>(buffer, 1)[0] == 2);
  });
}

TEST("a communicator in progress refuses the next call") {
  in_threads(1, {{"STANDIN_NCCL_LAUNCH_DELAY_US", "20000"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = begin(1, id, rank), child;
    CUdeviceptr buffer = device.allocate(4);
    int size;
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInvalidArgument);
    CHECK(says(comm, "before the previous operation returned ncclSuccess"));
    CHECK(ncclCommSplit(comm, 0, 0, &child, nullptr) == ncclInvalidArgument);
    CHECK(ncclCommCount(comm, &size) == ncclInvalidArgument);
    CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(ncclCommCount(comm, &size) == ncclSuccess);
  });
}

TEST("blocking communicators return when the operation is on its stream, also by NCCL_COMM_BLOCKING") {
  for (bool by_variable : {false, true}) {
    Environment environment;
    if (by_variable) environment["NCCL_COMM_BLOCKING"] = "1";
    in_threads(2, environment, [&](int rank, auto& id) {
      Device device(rank);
      ncclComm_t comm = nullptr;
      ncclConfig218 options = config(!by_variable);
      CHECK(ncclCommInitRankConfig(&comm, 2, id, rank, &options) == ncclSuccess);
      CUdeviceptr buffer = device.upload(std::vector<float>{1});
      CHECK(sum(comm, buffer, 1, device.stream) == ncclSuccess);
      CHECK(device.template download<float>(buffer, 1)[0] == 2);
    });
  }
}

TEST("wrong arguments are refused with words, and a group with one of them does nothing") {
  in_threads(1, {}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(1, id, rank);
    CUdeviceptr buffer = device.upload(std::vector<float>{1, 2});
    const auto reduce = [&](CUdeviceptr output, int dtype, int op) {
      return ncclAllReduce(host(buffer), host(output), 1, dtype, op, comm, device.stream);
    };
    CHECK(reduce(buffer, ncclInt32, ncclAvg) == ncclInvalidArgument);
    CHECK(says(comm, "ncclAvg"));
    CHECK(reduce(buffer, 99, ncclSum) == ncclInvalidArgument);
    CHECK(reduce(buffer, ncclFloat32, 9) == ncclInvalidArgument);
    CHECK(reduce(0, ncclFloat32, ncclSum) == ncclInvalidArgument);
    CHECK(reduce(buffer + 2, ncclFloat32, ncclSum) == ncclInvalidArgument);
    CHECK(ncclBroadcast(host(buffer), host(buffer), 1, ncclFloat32, 1, comm, device.stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(host(buffer), host(buffer), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclUnhandledCudaError);
    CHECK(ncclAllReduce(host(buffer), host(buffer), 1, ncclFloat32, ncclSum, nullptr, device.stream) ==
          ncclInvalidArgument);
    ncclGroupStart();
    CHECK(reduce(buffer, ncclFloat32, ncclSum) == ncclSuccess);
    CHECK(reduce(buffer, ncclFloat32, 9) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    complete(reduce(buffer, ncclFloat32, ncclSum), comm, device.stream);
  });
}

TEST("two ranks on one device are refused, unless that is allowed") {
  const Environment one_device{{"STANDIN_CUDA_DEVICES", "1"}};
  in_ranks(2, one_device, [](int rank, auto& id) {
    Device device(0);
    ncclComm_t comm = begin(2, id, rank);
    CHECK(settle(comm) == ncclInvalidUsage);
    CHECK(says(comm, "Duplicate GPU detected"));
    CHECK(says(comm, "rank 0 and rank 1 both on CUDA device"));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
  // The hub decides; it is in this process.
  setenv("STANDIN_NCCL_MULTI_RANK_GPU", "1", 1);
  in_ranks(2, one_device, [](int rank, auto& id) {
    Device device(0);
    CHECK(ncclCommDestroy(connect(2, id, rank)) == ncclSuccess);
  });
  unsetenv("STANDIN_NCCL_MULTI_RANK_GPU");
}

TEST("the same rank twice, different sizes, and an id used twice are refused") {
  in_threads(2, {}, [](int thread, auto& id) {
    Device device(thread);
    ncclComm_t comm = begin(2, id, 0);
    CHECK(settle(comm) == ncclInvalidUsage);
    CHECK(says(comm, "already checked in"));
    ncclCommAbort(comm);
  });
  in_threads(2, {}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = begin(2 + rank, id, rank);
    CHECK(settle(comm) == ncclInvalidUsage);
    ncclCommAbort(comm);
  });
  in_threads(1, {{"STANDIN_NCCL_CONNECT_MS", "50"}}, [](int, auto& id) {
    Device device(0);
    ncclComm_t first = connect(1, id, 0), second = begin(1, id, 0);
    CHECK(settle(second) == ncclInvalidUsage);
    ncclCommAbort(second);
    CHECK(state_of(first) == ncclSuccess);
    ncclCommDestroy(first);
    sleep_ms(20);
    // Nobody listens any more.
    ncclComm_t third = begin(1, id, 0);
    CHECK(settle(third) == ncclSystemError);
    ncclCommAbort(third);
    ncclUniqueId foreign{};
    CHECK(ncclCommInitRankConfig(&third, 1, foreign, 0, nullptr) == ncclInvalidArgument);
    CHECK(ncclCommInitRankConfig(&third, 1, id, 1, nullptr) == ncclInvalidArgument);
  });
}

TEST("use after destroy, abort and finalize is refused, and reported") {
  Reports reports;
  in_threads(1, {{"STANDIN_CUDA_REPORT", reports.path}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(1, id, rank);
    CUdeviceptr buffer = device.allocate(4);
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInvalidUsage);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInvalidArgument);
    ncclResult_t state;
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclInvalidArgument);
  });
  CHECK(reports.mention("USE-AFTER-DESTROY: ncclCommDestroy"));
  CHECK(reports.mention("USE-AFTER-DESTROY: ncclAllReduce"));
}

TEST("splitting is refused while operations are in flight") {
  in_threads(1, {{"STANDIN_NCCL_OP_DELAY_US", "50000"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(1, id, rank), child;
    sum(comm, device.allocate(4), 1, device.stream);
    CHECK(settle(comm) == ncclSuccess);
    CHECK(ncclCommSplit(comm, 0, 0, &child, nullptr) == ncclInvalidUsage);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_SUCCESS);
    CHECK(ncclCommSplit(comm, -2, 0, &child, nullptr) == ncclInvalidArgument);
    CHECK(ncclCommSplit(comm, 0, 0, &child, nullptr) == ncclInProgress);
    CHECK(settle(comm) == ncclSuccess);
  });
}

TEST("any call can be made to fail") {
  in_threads(1, {{"STANDIN_NCCL_FAIL", "ncclAllReduce:3:2,ncclGetUniqueId:2:2"}}, [](int rank, auto& id) {
    Device device(rank);
    ncclComm_t comm = connect(1, id, rank);
    CUdeviceptr buffer = device.allocate(4);
    complete(sum(comm, buffer, 1, device.stream), comm, device.stream);
    CHECK(sum(comm, buffer, 1, device.stream) == ncclInternalError);
    complete(sum(comm, buffer, 1, device.stream), comm, device.stream);
    ncclUniqueId other;
    CHECK(ncclGetUniqueId(&other) == ncclSystemError);
  });
}
