// The state of the stand-in driver, and what its files use of each other.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../environment.h"
#include "../stand-in-cuda.h"

namespace stand_in {

// [Note: happens-before] Each stream is an entity with a clock, which counts its enqueued work; all threads of the host
// are entity 0. A vector clock says what work of each entity is known to have finished before. Recording an event
// copies the stream's vector, waiting for it joins the copy, and so does the host when it synchronises or finds
// something done. Two accesses to the same bytes, one of them a write, must be ordered by these vectors. They are
// compared when work is enqueued, so a missing wait is found in every run, whatever the timing.
using VectorClock = std::vector<uint64_t>;

inline void join(VectorClock& into, const VectorClock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

struct Access {
  uint64_t first, end;
  bool is_write;
  unsigned entity;
  uint64_t clock;
  std::string operation;
};

struct NotedBlock {
  uint64_t bytes;
  bool is_live;
};

enum { HostMemory = -1, MaxDevices = 64 };

struct Allocation {
  int device;  // or HostMemory
  uint64_t base, bytes;
  void* host;
  bool is_freed = false;
  std::vector<Access> accesses;
  std::map<uint64_t, NotedBlock> blocks;  // by address; empty where no allocator divides this memory

  ~Allocation() { std::free(host); }
};

struct Work {
  std::function<CUresult()> run;
  std::function<void()> drop;  // instead of run, after a sticky error
};

struct Stream;

// A thread and its queue: one for each stream, or one for all streams of a device (STANDIN_CUDA_STREAMS=serial).
struct Worker {
  std::deque<std::pair<std::shared_ptr<Stream>, Work>> queue;
  std::condition_variable has_work;
  bool ends = false;
  std::mt19937 random;
};

struct Stream {
  int device;
  unsigned entity;
  VectorClock clock;
  std::shared_ptr<Worker> worker;
  uint64_t enqueued = 0, finished = 0;
  bool is_destroyed = false;
};

struct Event {
  int device;
  bool has_timing;
  uint64_t recorded = 0, done = 0;  // how often
  VectorClock clock;
  std::chrono::steady_clock::time_point time;
};

struct Device {
  int retained = 0;
  uint64_t used = 0;
  long operations = 0;  // kernels and copies
  std::atomic<int> sticky{0};
  std::shared_ptr<Worker> serial_worker;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;  // work has finished
  std::map<uint64_t, std::shared_ptr<Allocation>> allocations;  // by base, freed ones in quarantine included
  std::deque<std::shared_ptr<Allocation>> quarantine;
  std::map<uint64_t, std::shared_ptr<Stream>> streams;
  std::map<uint64_t, std::shared_ptr<Event>> events;
  // Handles are never used twice, so that one used after its end is found.
  uint64_t next_handle = 0x5000;
  VectorClock host{1};
  unsigned next_entity = 1;
  Device devices[MaxDevices];
  std::atomic<int> process{0};  // that called cuInit
};

Driver& driver();
using Lock = std::unique_lock<std::mutex>;

// device.cc
int device_count();
int current_device();   // -1: none
CUresult context_result();  // 0, or why the calling thread cannot use its context
int races_found();
void fail(const char* kind, const std::string& message);  // report and count

// memory.cc
std::shared_ptr<Allocation> find_allocation(uint64_t pointer);
uint64_t total_bytes();
void free_all(int device);

// races.cc
// Declares an access by work that has just been enqueued; false, and reported, where it must not be.
bool declare_access(Allocation&, const StandInRange&, const Stream&, const std::string& operation);

// streams.cc
std::shared_ptr<Stream> find_stream(CUstream);
void destroy(Stream&);
void push(const std::shared_ptr<Stream>&, Work);
// What was enqueued before on these streams. @returns the sticky error
CUresult wait_for(Lock&, const std::vector<std::shared_ptr<Stream>>&, int device);
CUresult wait_for_device(Lock&, int device);

// enqueue.cc
// `counts`: is a kernel or a copy, in the sense of STANDIN_CUDA_STICKY_AT. May be called from any thread.
CUresult enqueue(CUstream, const std::string& name, std::vector<StandInRange>, bool counts,
                 std::function<int(void** host)> run);

}  // namespace stand_in

// At the start of every function of the ABI.
#define STANDIN_CALL(function) \
  if (const int forced_ = stand_in::forced_result("STANDIN_CUDA_FAIL", #function)) return forced_
// At the start of those that need a current context.
#define STANDIN_CONTEXT_CALL(function) \
  STANDIN_CALL(function);              \
  if (const CUresult bad_ = stand_in::context_result()) return bad_
