// A process that can have no more threads (by its limit, or its control group's), and an NCCL that cannot destroy: both
// are failures of the call that met them, and neither ends the process nor keeps anybody waiting.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <utility>

#include "engine-ranks.h"

using namespace ranks;

// How many more; -1: enough.
static std::atomic<int> threads_left{-1};

// The program's comes before the C library's, for all libraries.
extern "C" __attribute__((visibility("default")))
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  static auto* create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) threads_left--;
  return create(thread, attributes, body, argument);
}

// Enough for what comes next of the stand-ins, whose streams and calls have threads of their own.
static std::atomic<int> threads_then{-1};
static std::atomic<int> made{0};

// Counts what is made and given back by two functions of the driver.
template <int id, int step, class... Arguments>
static void count_calls(CUresult (*&function)(Arguments...)) {
  static CUresult (*call)(Arguments...) = nullptr;
  call = std::exchange(function, [](Arguments... arguments) {
    made += step;
    return call(arguments...);
  });
}

static CUresult (*allocate_pinned)(void**, size_t, unsigned);
static CUresult allocate_last(void** memory, size_t bytes, unsigned flags) {
  threads_left = threads_then.load();
  return allocate_pinned(memory, bytes, flags);
}

TEST("a device is opened with all its threads, or not at all, and then nothing of it is left") {
  alone([](Rank& self) {
    count_calls<0, 1>(cuda().cuDevicePrimaryCtxRetain);
    count_calls<1, -1>(cuda().cuDevicePrimaryCtxRelease_v2);
    count_calls<2, 1>(cuda().cuStreamCreate);
    count_calls<3, -1>(cuda().cuStreamDestroy_v2);
    count_calls<4, 1>(cuda().cuMemHostAlloc);
    count_calls<5, -1>(cuda().cuMemFreeHost);
    allocate_pinned = std::exchange(cuda().cuMemHostAlloc, allocate_last);
    for (int threads = 0; threads < 3; threads++) {
      Status status;
      threads_then = threads;
      CHECK(open_device_with(0, "", short_limits(), &status) == nullptr);
      threads_left = -1;
      CHECK(status.code == Code::Unavailable);
      CHECK(contains(status.message, "device 0 cannot be opened: the process can have no more threads"));
      CHECK(made == 0);
    }
    threads_then = 3;
    CHECK(self.open());
    CHECK(made > 0);
    threads_left = 0;
    CHECK(self.close().ok());
    CHECK(made == 0);
  });
}

static ncclResult_t (*get_async_error)(ncclComm_t, ncclResult_t*);
static ncclResult_t note_async_error(ncclComm_t comm, ncclResult_t* error) {
  const ncclResult_t result = get_async_error(comm, error);
  if (*error == ncclSuccess) threads_left = 0;
  return result;
}

TEST("a communicator that no thread can destroy is leaked, and who asked for it is told") {
  alone([](Rank& self) {
    self.start();
    get_async_error = std::exchange(nccl().ncclCommGetAsyncError, note_async_error);
    const Status status = self.destroy(self.world);
    CHECK(status.code == Code::Unavailable && contains(status.message, "destroy of communicator world"));
    CHECK(stats(self.engine).leaked_communicators == 1);
    CHECK(self.close().ok());
  });
}

TEST("nor does an abort that finds no thread keep anybody waiting") {
  in_threads(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(10, 1);
    if (self.rank == 1) {
      self.meet();
      return;
    }
    Later hung = self.all_reduce(block, 10);
    sleep_ms(20);
    threads_left = 0;
    comm_abort({self.world}, "for a test");
    CHECK(hung.get().code == Code::Aborted);
    CHECK(self.destroy(self.world).code == Code::Unavailable);
    CHECK(stats(self.engine).leaked_communicators == 1);
    CHECK(self.close().ok());
    self.meet();
  });
}

TEST("what ncclCommDestroy says against it is told, and the communicator is not used again") {
  alone([](Rank& self) {
    self.start();
    for (int i = 0; i < 2; i++) {
      const Status status = self.destroy(self.world);
      CHECK(status.code == Code::Nccl && status.call == "ncclCommDestroy" && status.result == ncclSystemError);
      CHECK(contains(status.message, "destroy of communicator world"));
    }
    CHECK(stats(self.engine).leaked_communicators == 0);
    BlockRef block = self.filled(10, 1);
    CHECK(self.all_reduce(block, 10).get().code == Code::Closed);
    CHECK(self.close().ok());
  }, {{{"STANDIN_NCCL_FAIL", "ncclCommDestroy:2:1"}}});
}
