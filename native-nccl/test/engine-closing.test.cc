// The end of a device, and of the process, whatever hangs.
#include <utility>

#include "engine-ranks.h"

using namespace ranks;

constexpr size_t count = 1000;

TEST("closing while a collective hangs ends it, and all that waits in the queue behind it") {
  in_threads(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    std::vector<float> values(count);
    if (self.rank == 1) return self.meet();
    std::vector<Later> all;
    for (int i = 0; i < 600; i++) all.push_back(self.all_reduce(block, count));
    Later down;
    download(block, 0, values.data(), count * 4, 3000, down.completion());
    sleep_ms(20);
    double begun = clock_ms();
    CHECK(self.close().ok());
    CHECK(clock_ms() - begun < 1500);
    for (const Later& later : all) CHECK(later.get(0).code == Code::Closed && later.count() == 1);
    CHECK(down.get(0).code == Code::Closed);
    CHECK(flight_recorder(self.engine).back().state == FlightRecord::Failed);
    self.meet();
  });
}

TEST("closing while an abort hangs gives it up in time") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, count);
    sleep_ms(20);
    double begun = clock_ms();
    CHECK(self.close().ok());
    CHECK(clock_ms() - begun < 2500);
    CHECK(hung.get(0).code == Code::Closed);
    CHECK(stats(self.engine).leaked_communicators == 1);
    self.meet();
  }, {{{"STANDIN_NCCL_ABORT_HANG_MS", "100000"}}});
}

static std::atomic<bool> is_stuck{false};
static CUresult hang_in_copy(CUdeviceptr, CUdeviceptr, size_t, CUstream) {
  is_stuck = true;
  for (;;) pause();
}

TEST("an engine thread that hangs in a call of the driver is left behind: closing ends in time, and so does all else") {
  alone([](Rank& self) {
    Limits limits = short_limits();
    limits.abort_ms = limits.drain_ms = limits.join_ms = 80;
    CHECK(self.open(0, "", limits));
    BlockRef block = self.filled(count, 1);
    cuda().cuMemcpyDtoDAsync_v2 = hang_in_copy;
    copy(block, 0, block, 400, 400);
    Later behind;
    synchronize(self.engine, 100, behind.completion());
    CHECK(eventually([] { return is_stuck.load(); }));
    uint64_t heartbeat = stats(self.engine).heartbeat;
    sleep_ms(120);
    CHECK(stats(self.engine).heartbeat == heartbeat);
    double begun = clock_ms();
    CHECK(self.close().ok());
    CHECK(clock_ms() - begun < 2500);
    CHECK(behind.get(0).code == Code::Closed && behind.count() == 1);
    CHECK(flight_recorder(self.engine).empty());
  });
}

static std::atomic<bool> may_go_on{false};
static CUresult (*copy_on_device)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
static CUresult stall_in_copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  while (!may_go_on) sleep_ms(0.2);
  return copy_on_device(target, source, bytes, stream);
}

TEST("while the engine thread hangs in a call deadlines hold, and host memory is left alone; then the engine goes on") {
  alone([](Rank& self) {
    Limits limits = short_limits();
    limits.stall_ms = 100;
    CHECK(self.open(0, "", limits) && self.init().ok());
    BlockRef block = self.filled(count, 1), other = self.filled(count, 2);
    copy_on_device = std::exchange(cuda().cuMemcpyDtoDAsync_v2, stall_in_copy);
    std::vector<float> target(count, -1);
    Later synchronized, down, long_enough, reduced = self.all_reduce(block, count, 100);
    copy(block, 0, block, 400, 400);
    synchronize(self.engine, 100, synchronized.completion());
    download(other, 0, target.data(), count * 4, 100, down.completion());
    upload(other, 0, target.data(), 4, 60000, long_enough.completion());
    for (const Later& later : {synchronized, down, reduced}) {
      CHECK(later.get(1500).code == Code::Timeout && contains(later.get().message, "100 ms: the engine thread hangs"));
    }
    CHECK(long_enough.count() == 0);
    // Though it was launched in time.
    CHECK(flight_recorder(self.engine)[0].state == FlightRecord::Launched);
    may_go_on = true;
    CHECK(long_enough.get().ok());
    CHECK(self.synchronize().ok());
    CHECK(target == std::vector<float>(count, -1));
    for (const Later& later : {synchronized, down, reduced}) CHECK(later.count() == 1);
    CHECK(self.all_reduce(block, count).get().code == Code::Aborted);
    CHECK(self.close().ok());
  });
}

TEST("a process may exit in the middle of a collective") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    if (self.rank == 0) self.all_reduce(block, count);
    self.meet();
    // With static destructors, and the engine's threads alive.
    std::exit(check::failures() ? 1 : 0);
  });
}

TEST("several engines of one device work beside each other, and closing one leaves the other") {
  alone([](Rank& self) {
    CHECK(self.open(3));
    Rank other(0, 1, self.shared);
    CHECK(other.open(3));
    BlockRef mine = self.filled(count, 1), theirs = other.filled(count, 2);
    CHECK(self.init().ok() && other.init(3000, 1).ok());
    CHECK(self.close().ok());
    CHECK(other.all_reduce(theirs, count).get().ok());
    CHECK(other.download(theirs, count)[5] == 2);
    CHECK(other.close().ok());
  });
}
