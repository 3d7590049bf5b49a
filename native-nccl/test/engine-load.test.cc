// What the engine costs: processor time while nothing happens, and what many operations leave behind.
#include <ctime>

#include "engine-ranks.h"

using namespace ranks;

// Of this process, in parts of one core, over `ms`.
static double load_over(double ms) {
  auto used_ms = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  double before = used_ms(), begun = clock_ms();
  sleep_ms(ms);
  return (used_ms() - before) / (clock_ms() - begun);
}

TEST("an idle engine takes next to no processor time") {
  alone([](Rank& self) {
    self.start();
    CHECK(self.all_reduce(self.filled(1000, 1), 1000).get().ok());
    sleep_ms(20);
    double load = load_over(600);
    std::printf("    %.2f %% of a core\n", load * 100);
    CHECK(load < 0.01);
    CHECK(self.close().ok());
  });
}

TEST("an engine behind a collective that hangs polls, and does not spin") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(1000, 1);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, 1000);
    copy(block, 0, block, 2000, 2000);
    sleep_ms(20);
    double load = load_over(600);
    std::printf("    %.2f %% of a core\n", load * 100);
    CHECK(load < 0.25);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    self.meet();
  });
}

static std::atomic<bool> may_answer{false}, is_asked{false};
static CUresult answer_late(size_t* free_bytes, size_t* total_bytes) {
  is_asked = true;
  while (!may_answer) sleep_ms(0.2);
  *free_bytes = *total_bytes = 1;
  return CUDA_SUCCESS;
}

TEST("the engine goes on while the driver keeps somebody waiting who asks for statistics") {
  alone([](Rank& self) {
    CHECK(self.open());
    cuda().cuMemGetInfo_v2 = answer_late;
    std::thread asking([&] { CHECK(stats(self.engine).total_bytes == 1); });
    CHECK(eventually([] { return is_asked.load(); }));
    // From elsewhere, as the call would wait too where the engine does.
    Later done;
    std::thread working([&] { synchronize(self.engine, 3000, done.completion()); });
    CHECK(done.get(1000).ok());
    may_answer = true;
    asking.join(), working.join();
    CHECK(self.close().ok());
  });
}

TEST("synchronize keeps to what fits on a stream, however often it is called") {
  in_processes(2, [](Rank& self) {
    Limits limits = short_limits();
    limits.in_flight = 8;
    CHECK(self.open(-1, "", limits) && self.init().ok());
    BlockRef block = self.filled(1000, 1);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, 1000);
    std::vector<Later> all(100);
    for (const Later& later : all) synchronize(self.engine, 3000, later.completion());
    sleep_ms(100);
    // Marks, and what waits for them.
    CHECK(stats(self.engine).in_flight <= 2 * limits.in_flight);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    for (const Later& later : all) CHECK(later.get().ok());
    self.meet();
  });
}

static std::atomic<int> entries{0};
static CudaFunctions driver;
static CUresult count_copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  entries++;
  return driver.cuMemcpyDtoDAsync_v2(target, source, bytes, stream);
}
static CUresult count_record(CUevent event, CUstream stream) {
  entries++;
  return driver.cuEventRecord(event, stream);
}
static CUresult count_wait(CUstream stream, CUevent event, unsigned flags) {
  entries++;
  return driver.cuStreamWaitEvent(stream, event, flags);
}

TEST("behind a collective that hangs no stream gets more than the driver takes without blocking") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(1000, 1), target = self.block(4000);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, 1000);
    CHECK(eventually([&] { return flight_recorder(self.engine)[0].state == FlightRecord::Launched; }));
    driver = cuda();
    cuda().cuMemcpyDtoDAsync_v2 = count_copy;
    cuda().cuEventRecord = count_record;
    cuda().cuStreamWaitEvent = count_wait;
    // Each waits for the collective.
    for (int i = 0; i < 2000; i++) copy(target, 0, block, 0, 400);
    sleep_ms(100);
    CHECK(entries > 100 && entries < 1000);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    CHECK(self.synchronize().ok());
    self.meet();
  });
}

static std::atomic<int> releases{0};
static CUresult refuse_context(CUcontext) { return CUDA_ERROR_INVALID_CONTEXT; }
static CUresult count_release(CUdevice) {
  releases++;
  return CUDA_SUCCESS;
}

TEST("a device that cannot be opened keeps no context") {
  alone([](Rank&) {
    cuda().cuCtxSetCurrent = refuse_context;
    cuda().cuDevicePrimaryCtxRelease_v2 = count_release;
    Status status;
    CHECK(open_device_with(0, "", short_limits(), &status) == nullptr);
    CHECK(status.call == "cuCtxSetCurrent" && releases == 1);
  });
}
