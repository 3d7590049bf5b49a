// Ranks for tests of the engine: processes, or threads of one process, on the stand-ins of the driver and of NCCL.
// Every test runs in processes of its own, so that its variables, libraries and sticky errors are its own.
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../src/clock.h"
#include "../src/device-engine.h"
#include "../src/engine.h"
#include "../src/library.h"
#include "../stand-in/stand-in-cuda.h"

#include "check.h"

namespace ranks {

using namespace lockstep;
using Variables = std::map<std::string, std::string>;

// What a test waits for at most, for anything; longer is a hang.
constexpr double hang_ms = 4000;

// A status that comes later, once.
class Later {
 public:
  Completion completion() const {
    return [state = state_](const Status& status) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->count++;
      state->status = status;
      state->changed.notify_all();
    };
  }
  Status get(double limit_ms = hang_ms) const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    auto limit = std::chrono::duration<double, std::milli>(limit_ms);
    bool is_there = state_->changed.wait_for(lock, limit, [this] { return state_->count > 0; });
    CHECK(is_there && "completed in time");
    if (!is_there) state_->status.code = Code::Unavailable;
    return state_->status;
  }
  int count() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->count;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
    Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Memory that all processes of a test share.
struct Shared {
  static constexpr int most_ids = 4;
  std::atomic<int> ids_made, arrived, ended;
  uint8_t ids[most_ids][128];
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline void sleep_ms(double ms) { usleep(static_cast<useconds_t>(ms * 1000)); }
template <class Condition>
bool eventually(Condition condition, double limit_ms = hang_ms) {
  for (double end = clock_ms() + limit_ms; clock_ms() < end; sleep_ms(0.2)) {
    if (condition()) return true;
  }
  return false;
}

inline std::string build_folder() {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1);
}

inline const Probe& load() { return probe({build_folder() + "libcuda.so.1"}, {build_folder() + "libnccl.so.2"}); }

inline Limits short_limits() {
  Limits limits;
  limits.abort_ms = 400;
  limits.drain_ms = 200;
  limits.join_ms = 300;
  limits.free_ms = 500;
  limits.staging_slot_bytes = size_t(256) << 10;
  return limits;
}

class Rank {
 public:
  Rank(int rank, int size, Shared* shared) : rank(rank), size(size), shared(shared) {}

  bool open(int index = -1, const std::string& ptx = "", const Limits& limits = short_limits()) {
    Status status;
    engine = open_device_with(index < 0 ? rank : index, ptx, limits, &status);
    CHECK(status.ok());
    return engine != nullptr;
  }
  Status init(int64_t timeout_ms = 3000, int id = 0, CommRef* made = nullptr) {
    Status status;
    InitOptions options;
    options.size = size;
    options.rank = rank;
    options.timeout_ms = timeout_ms;
    options.name = id ? "world-" + std::to_string(id) : "world";
    std::memcpy(options.id, shared->ids[id], sizeof options.id);
    Later later;
    CommRef* place = made ? made : &world;
    comm_init(engine, options, [=, done = later.completion()](const Status& s, CommRef c) { *place = c, done(s); });
    return later.get();
  }
  // Open and initialised, without a failure.
  void start() {
    if (!open()) return;
    Status status = init();
    CHECK(status.ok());
    if (!status.ok()) std::printf("    %s\n", status.message.c_str());
  }
  Status split(const CommRef& parent, int color, int key, CommRef* child, int64_t timeout_ms = 3000) {
    Later later;
    auto done = [=, done = later.completion()](const Status& s, CommRef c) { *child = c, done(s); };
    comm_split(parent, color, key, timeout_ms, "child", done);
    return later.get();
  }

  BlockRef block(size_t bytes) {
    Status status;
    BlockRef made = allocate(engine, bytes, &status);
    CHECK(status.ok());
    return made;
  }
  BlockRef filled(size_t count, float value) {
    BlockRef made = block(count * 4);
    std::vector<float> values(count, value);
    CHECK(upload(made, values).ok());
    return made;
  }
  template <class T>
  Status upload(const BlockRef& target, const std::vector<T>& values, size_t offset = 0, int64_t timeout_ms = 3000) {
    Later later;
    lockstep::upload(target, offset, values.data(), values.size() * sizeof(T), timeout_ms, later.completion());
    return later.get();
  }
  template <class T = float>
  std::vector<T> download(const BlockRef& source, size_t count, size_t offset = 0) {
    std::vector<T> values(count);
    Later later;
    lockstep::download(source, offset, values.data(), count * sizeof(T), 3000, later.completion());
    CHECK(later.get().ok());
    return values;
  }
  Later start_collective(const CommRef& comm, std::vector<Operation> operations, int64_t timeout_ms = 3000,
                         const std::string& label = "test") {
    Later later;
    collective(comm, std::move(operations), label, timeout_ms, later.completion());
    return later;
  }
  Later all_reduce(const BlockRef& block, size_t count, int64_t timeout_ms = 3000, CommRef comm = nullptr) {
    return start_collective(comm ? comm : world, {reduce_of(block, count)}, timeout_ms, "allReduce");
  }
  static Operation reduce_of(const BlockRef& block, size_t count) {
    Operation operation{Operation::AllReduce, block, block};
    operation.count = count;
    operation.dtype = ncclFloat32;
    operation.op = ncclSum;
    return operation;
  }
  Status destroy(const CommRef& comm, int64_t timeout_ms = 2000) {
    Later later;
    comm_destroy(comm, timeout_ms, later.completion());
    return later.get();
  }
  Status close() {
    Later later;
    close_device(engine, later.completion());
    return later.get();
  }
  Status synchronize(int64_t timeout_ms = 3000) {
    Later later;
    lockstep::synchronize(engine, timeout_ms, later.completion());
    return later.get();
  }
  // Waits for all ranks; a rank that does not come is a failure.
  void meet() {
    int round = ++meetings_;
    shared->arrived++;
    CHECK(eventually([&] { return shared->arrived >= round * size; }));
  }

  const int rank, size;
  Shared* const shared;
  EngineRef engine;
  CommRef world;

 private:
  int meetings_ = 0;
};

using Body = std::function<void(Rank&)>;

inline void make_ids(Shared* shared) {
  for (int i = 0; i < Shared::most_ids; i++) CHECK(unique_id(shared->ids[i]).ok());
  shared->ids_made = 1;
}

struct Setting {
  Variables variables;
  // Reports of misuse that the stand-ins are to make.
  bool expects_reports = false;
};

[[noreturn]] inline void run_process(const Setting& setting, const std::function<void()>& body) {
  setenv("STANDIN_CUDA_DEVICES", "8", 1);
  setenv("STANDIN_CUDA_MEM_MB", "64", 1);
  for (const auto& [name, value] : setting.variables) setenv(name.c_str(), value.c_str(), 1);
  check::failures() = 0;
  body();
  if (!setting.expects_reports) CHECK(standin_cuda_report_count() == 0);
  std::fflush(stdout);
  _exit(check::failures() ? 1 : 0);
}

// `killed`: the rank that is to end by SIGKILL.
inline void wait_for_processes(const std::vector<pid_t>& processes, int killed = -1) {
  double end = clock_ms() + 2 * hang_ms;
  for (size_t i = 0; i < processes.size(); i++) {
    int status = 0;
    pid_t ended = 0;
    while (!(ended = waitpid(processes[i], &status, WNOHANG)) && clock_ms() < end) sleep_ms(0.5);
    if (!ended) {
      CHECK(!"the process hangs");
      kill(processes[i], SIGKILL);
      waitpid(processes[i], &status, 0);
    } else if (static_cast<int>(i) == killed) {
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }
}

inline Shared* new_shared() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared{};
}

inline void in_processes(int size, const Body& body, const Setting& setting = {}, int killed = -1) {
  Shared* shared = new_shared();
  std::fflush(stdout);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; rank++) {
    pid_t process = fork();
    if (process == 0) {
      run_process(setting, [&] {
        load();
        if (rank == 0) make_ids(shared);
        CHECK(eventually([&] { return shared->ids_made == 1; }));
        Rank self(rank, size, shared);
        body(self);
        // Nobody leaves before all are done, least of all the process that made the ids.
        shared->ended++;
        CHECK(eventually([&] { return shared->ended >= (killed < 0 ? size : size - 1); }));
      });
    }
    processes.push_back(process);
  }
  wait_for_processes(processes, killed);
  munmap(shared, sizeof(Shared));
}

inline void in_threads(int size, const Body& body, const Setting& setting = {}) {
  std::fflush(stdout);
  pid_t process = fork();
  if (process == 0) {
    run_process(setting, [&] {
      load();
      Shared* shared = new_shared();
      make_ids(shared);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < size; rank++) {
        threads.emplace_back([&, rank] {
          Rank self(rank, size, shared);
          body(self);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
  wait_for_processes({process});
}

inline void alone(const Body& body, const Setting& setting = {}) { in_threads(1, body, setting); }

}  // namespace ranks
