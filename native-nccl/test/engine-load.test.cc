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
    CHECK(load < 0.05);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    self.meet();
  });
}
