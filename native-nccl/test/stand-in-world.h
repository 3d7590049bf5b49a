// What the tests of the stand-ins share: their functions, and processes and threads to call them in.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../stand-in/stand-in-cuda.h"
#include "check.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGetUuid_v2(CUuuid*, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize();
CUresult cuGetErrorName(CUresult, const char**);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t*, size_t*);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuStreamCreate(CUstream*, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuEventCreate(CUevent*, unsigned);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float*, CUevent, CUevent);
CUresult cuModuleLoadData(CUmodule*, const void*);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuModuleUnload(CUmodule);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**);
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int, ncclUniqueId, int, void*);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, void*);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
ncclResult_t ncclCommCount(ncclComm_t, int*);
ncclResult_t ncclCommUserRank(ncclComm_t, int*);
const char* ncclGetLastError(ncclComm_t);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllReduce(const void*, void*, size_t, int, int, ncclComm_t, CUstream);
ncclResult_t ncclBroadcast(const void*, void*, size_t, int, int, ncclComm_t, CUstream);
ncclResult_t ncclReduce(const void*, void*, size_t, int, int, int, ncclComm_t, CUstream);
ncclResult_t ncclAllGather(const void*, void*, size_t, int, ncclComm_t, CUstream);
ncclResult_t ncclReduceScatter(const void*, void*, size_t, int, int, ncclComm_t, CUstream);
ncclResult_t ncclSend(const void*, size_t, int, int, ncclComm_t, CUstream);
ncclResult_t ncclRecv(void*, size_t, int, int, ncclComm_t, CUstream);
}

namespace world {

using Environment = std::map<std::string, std::string>;

inline void sleep_ms(int milliseconds) { usleep(milliseconds * 1000); }

// A driver does not survive a fork: whatever touches it runs in a child of a test that never did. Its failed checks are
// those of the test. A child that hangs is ended by its alarm, which fails the test as well.
inline pid_t start(const Environment& environment, const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child) return child;
  alarm(30);
  for (auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  // Reports that a test asks for are no news.
  if (!std::getenv("SHOW_REPORTS")) dup2(open("/dev/null", O_WRONLY), 2);
  check::failures() = 0;
  body();
  std::fflush(stdout);
  _exit(check::failures() ? 1 : 0);
}

inline void finish(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  const bool child_passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  CHECK(child_passed);
}

inline void in_process(const Environment& environment, const std::function<void()>& body) {
  finish(start(environment, body));
}

using RankBody = std::function<void(int rank, const ncclUniqueId& id)>;

// A process for each rank; rank i has device i. The hub lives in a process of its own, which starts its threads once
// all ranks are there: a fork beside a running thread may copy a lock that nobody will ever give back.
inline void in_ranks(int size, Environment environment, const RankBody& body) {
  environment.emplace("STANDIN_CUDA_DEVICES", std::to_string(size));
  in_process({}, [&] {
    int id_pipe[2];
    CHECK(pipe(id_pipe) == 0);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; rank++) {
      children.push_back(start(environment, [&] {
        ncclUniqueId id;
        CHECK(read(id_pipe[0], &id, sizeof id) == sizeof id);
        body(rank, id);
      }));
    }
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    // No longer than what a pipe takes or gives at once, so that each rank reads a whole one.
    for (int rank = 0; rank < size; rank++) CHECK(write(id_pipe[1], &id, sizeof id) == sizeof id);
    for (pid_t child : children) finish(child);
  });
}

// A thread for each rank, all in one process.
inline void in_threads(int size, Environment environment, const RankBody& body) {
  environment.emplace("STANDIN_CUDA_DEVICES", std::to_string(size));
  in_process(environment, [&] {
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; rank++) threads.emplace_back([&, rank] { body(rank, id); });
    for (auto& thread : threads) thread.join();
  });
}

// A device with its context current in this thread.
struct Device {
  explicit Device(int index = 0) {
    CUcontext context;
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, index) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    stream = new_stream();
  }
  CUstream stream;

  CUstream new_stream() {
    CUstream made = nullptr;
    CHECK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return made;
  }
  CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made = nullptr;
    CHECK(cuEventCreate(&made, flags) == CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr pointer = 0;
    CHECK(cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS);
    return pointer;
  }
  template <class T>
  CUdeviceptr upload(const std::vector<T>& values) {
    const CUdeviceptr pointer = allocate(values.empty() ? 1 : values.size() * sizeof(T));
    CHECK(cuMemcpyHtoDAsync_v2(pointer, values.data(), values.size() * sizeof(T), stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    return pointer;
  }
  // After all that is on the stream.
  template <class T>
  std::vector<T> download(CUdeviceptr pointer, size_t count) {
    std::vector<T> values(count);
    CHECK(cuMemcpyDtoHAsync_v2(values.data(), pointer, count * sizeof(T), stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    return values;
  }
};

inline int state_of(ncclComm_t comm) {
  ncclResult_t state = -1;
  CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
  return state;
}

// Until it is not in progress any more. @returns the state, ncclInProgress after the time
inline int settle(ncclComm_t comm, int milliseconds = 10000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  int state;
  while ((state = state_of(comm)) == ncclInProgress && std::chrono::steady_clock::now() < end) usleep(50);
  return state;
}

inline ncclConfig218 config(bool is_blocking) {
  return {sizeof(ncclConfig218), static_cast<unsigned>(NCCL_CONFIG_MAGIC), NCCL_CONFIG_VERSION, is_blocking ? 1 : 0,
          NCCL_CONFIG_UNDEFINED, NCCL_CONFIG_UNDEFINED, NCCL_CONFIG_UNDEFINED, nullptr, NCCL_CONFIG_UNDEFINED};
}

// Begins a non-blocking initialisation.
inline ncclComm_t begin(int size, const ncclUniqueId& id, int rank) {
  ncclComm_t comm = nullptr;
  ncclConfig218 options = config(false);
  CHECK(ncclCommInitRankConfig(&comm, size, id, rank, &options) == ncclInProgress);
  return comm;
}

inline ncclComm_t connect(int size, const ncclUniqueId& id, int rank) {
  ncclComm_t comm = begin(size, id, rank);
  CHECK(settle(comm) == ncclSuccess);
  return comm;
}

// Waits for the call to reach its stream, then for the stream.
inline void complete(ncclResult_t issued, ncclComm_t comm, CUstream stream) {
  CHECK(issued == ncclInProgress);
  CHECK(settle(comm) == ncclSuccess);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

inline void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

// A file for STANDIN_CUDA_REPORT, and what it says.
struct Reports {
  Reports() : path("/tmp/stand-in-report-" + std::to_string(getpid())) { unlink(path.c_str()); }
  ~Reports() { unlink(path.c_str()); }
  std::string path;
  bool mention(const std::string& words) const {
    std::ifstream file(path);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    return all.find(words) != std::string::npos;
  }
};

}  // namespace world
