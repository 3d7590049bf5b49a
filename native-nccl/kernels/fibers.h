// A block of a kernel launch on one OS thread, for CPU builds of kernels. The threads of the block are fibers, run in
// random order from barrier to barrier, so that what a kernel leaves unsynchronised shows. Found and thrown as
// KernelFault: a barrier that not all threads reach, a shuffle that not all lanes of a warp reach, or that reads from a
// lane that is not there.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::shim {

constexpr unsigned warp_size = 32;

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

// The built-in variables of the thread that runs.
struct Position {
  Index thread, block, block_size, grid_size;
};
inline thread_local Position position;

struct KernelFault : std::logic_error {
  using std::logic_error::logic_error;
};

class Fibers {
 public:
  // The ones that run on this OS thread now; null in a kernel without barriers.
  static Fibers*& current() {
    static thread_local Fibers* fibers = nullptr;
    return fibers;
  }

  // Runs `body` once for each of `threads`.
  void run(const std::vector<Index>& threads, void (*body)(const void*), const void* argument) {
    body_ = body;
    argument_ = argument;
    fault_.clear();
    if (fibers_.size() != threads.size()) fibers_ = std::vector<Fiber>(threads.size());
    for (size_t i = 0; i < threads.size(); i++) prepare(fibers_[i], threads[i]);
    Fibers* const outer = current();
    current() = this;
    try {
      while (run_to_barriers()) release();
    } catch (...) {
      current() = outer;
      throw;
    }
    current() = outer;
  }

  void block_barrier(int line) { wait(Waiting::ForBlock, line); }

  unsigned lane() const { return static_cast<unsigned>(running_ % warp_size); }

  // The value that lane `source` of this warp gives at this shuffle.
  template <class T>
  T shuffle(unsigned mask, T value, unsigned source, int line) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    if (mask != 0xffffffffu) fail("a shuffle whose mask is not all lanes, in line " + std::to_string(line));
    Fiber& mine = fibers_[running_];
    // Two slots in turn: a lane may be one shuffle ahead of one that has not read yet, never two.
    const unsigned slot = mine.shuffles++ % 2;
    std::memcpy(&mine.slots[slot], &value, sizeof value);
    wait(Waiting::ForWarp, line);
    const size_t other = running_ - lane() + source;
    if (other >= fibers_.size()) fail("a shuffle from a lane that is not there, in line " + std::to_string(line));
    std::memcpy(&value, &fibers_[other].slots[slot], sizeof value);
    return value;
  }

 private:
  enum class Waiting { No, ForBlock, ForWarp, Ended };

  struct Fiber {
    ucontext_t context;
    Index thread;
    Waiting waiting;
    int line;  // of the barrier
    unsigned shuffles;
    uint64_t slots[2];
    std::unique_ptr<char[]> stack;
  };

  void prepare(Fiber& fiber, Index thread) {
    constexpr size_t stack_bytes = 64 * 1024;
    if (!fiber.stack) fiber.stack.reset(new char[stack_bytes]);
    fiber.thread = thread;
    fiber.waiting = Waiting::No;
    fiber.shuffles = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }

  static void enter() {
    Fibers& fibers = *current();
    fibers.body_(fibers.argument_);
    fibers.wait(Waiting::Ended, 0);
  }

  // Back to the scheduler, until it releases this fiber.
  void wait(Waiting waiting, int line) {
    Fiber& fiber = fibers_[running_];
    fiber.waiting = waiting;
    fiber.line = line;
    swapcontext(&fiber.context, &scheduler_);
  }

  // In a fiber. Exceptions do not cross from a fiber to the scheduler, so that throws it.
  void fail(const std::string& why) {
    fault_ = why;
    wait(Waiting::Ended, 0);
  }

  // Runs each fiber until it waits or ends. False: all have ended.
  bool run_to_barriers() {
    std::vector<size_t> order;
    for (size_t i = 0; i < fibers_.size(); i++) {
      if (fibers_[i].waiting == Waiting::No) order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t i : order) {
      running_ = i;
      position.thread = fibers_[i].thread;
      swapcontext(&scheduler_, &fibers_[i].context);
      if (!fault_.empty()) throw KernelFault(fault_);
    }
    return any(0, fibers_.size(), [](const Fiber& fiber) { return fiber.waiting != Waiting::Ended; });
  }

  // Every fiber waits or has ended: release the warps at a shuffle, or where there are none, the block.
  void release() {
    bool is_released = false;
    for (size_t first = 0; first < fibers_.size(); first += warp_size) {
      const size_t end = std::min(first + warp_size, fibers_.size());
      is_released |= release(first, end, Waiting::ForWarp, "a shuffle that not all lanes of a warp reach");
    }
    if (is_released) return;
    release(0, fibers_.size(), Waiting::ForBlock, "a barrier that not all threads of the block reach");
  }

  // Whether any of these fibers waited so; then all must, in the same line.
  bool release(size_t first, size_t end, Waiting waiting, const char* divergent) {
    const auto waits = [waiting](const Fiber& fiber) { return fiber.waiting == waiting; };
    if (!any(first, end, waits)) return false;
    const int line = std::find_if(fibers_.begin() + first, fibers_.begin() + end, waits)->line;
    if (any(first, end, [&](const Fiber& fiber) { return !waits(fiber) || fiber.line != line; })) {
      throw KernelFault(std::string(divergent) + ", in line " + std::to_string(line));
    }
    for (size_t i = first; i < end; i++) fibers_[i].waiting = Waiting::No;
    return true;
  }

  template <class Claim>
  bool any(size_t first, size_t end, Claim claim) const {
    return std::any_of(fibers_.begin() + first, fibers_.begin() + end, claim);
  }

  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  size_t running_ = 0;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  std::string fault_;
  std::mt19937 random_{20240607};
};

}  // namespace lockstep::shim
