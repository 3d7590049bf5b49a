// A device and the one thread that talks to it. Free of N-API, so that plain C++ tests and sanitizers can run it.
//
// Threads: the functions of this file may be called from any thread. What has a completion, or returns nothing, only
// queues: the engine thread makes the CUDA and NCCL calls, in the order of the queue. Completions are called on the
// engine thread, exactly once. Exceptions: where that thread hangs in a call, what times out or is ended by closing is
// completed on a thread of its own (and close_device itself always is); what is asked of a closed device is completed
// at once, by the calling thread.
//
// library.h has what can be asked without a device: probe, device_info, unique_id.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace lockstep {

class Engine;        // of one device
class Block;         // device memory, see block.h
class Communicator;  // see communicators.h

using BlockRef = std::shared_ptr<Block>;
using CommRef = std::shared_ptr<Communicator>;
using EngineRef = std::shared_ptr<Engine>;
using Completion = std::function<void(const Status&)>;
using CommCompletion = std::function<void(const Status&, CommRef)>;

// Opens device `index`: context, streams, kernels of `ptx` (may be empty), engine thread.
EngineRef open_device(int index, const std::string& ptx, Status* status);
void close_device(const EngineRef&, Completion);
void synchronize(const EngineRef&, int64_t timeout_ms, Completion);

// A null reference and a status where there is no memory.
BlockRef allocate(const EngineRef&, size_t bytes, Status* status);
void trim(const EngineRef&, Completion);

// `host` must stay valid until the completion is called; after it the engine does not touch it.
void upload(const BlockRef&, size_t offset, const void* host, size_t bytes, int64_t timeout_ms, Completion);
void download(const BlockRef&, size_t offset, void* host, size_t bytes, int64_t timeout_ms, Completion);
void copy(const BlockRef& target, size_t target_offset, const BlockRef& source, size_t source_offset, size_t bytes);

struct KernelArgument {
  enum Kind { Pointer, UInt64, Int32, Float32 } kind;
  BlockRef block;  // of Pointer
  size_t offset = 0, bytes = 0;
  bool is_written = false;
  uint64_t uint64 = 0;
  int32_t int32 = 0;
  float float32 = 0;
};
bool has_kernel(const EngineRef&, const std::string& name);
void launch(const EngineRef&, const std::string& kernel, unsigned grid, unsigned block, std::vector<KernelArgument>);

struct InitOptions {
  int size = 0, rank = 0;
  uint8_t id[128] = {};
  int64_t timeout_ms = 0;
  std::string name;
};
void comm_init(const EngineRef&, const InitOptions&, CommCompletion);
// color -1: no part in the child; completes with a null reference.
void comm_split(const CommRef& parent, int color, int key, int64_t timeout_ms, std::string name, CommCompletion);
void comm_abort(const std::vector<CommRef>&, const std::string& reason);
void comm_destroy(const CommRef&, int64_t timeout_ms, Completion);

struct Operation {
  enum Kind { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, Send, Recv } kind;
  BlockRef send, recv;
  size_t send_offset = 0, recv_offset = 0, count = 0;
  int dtype = 0, op = 0;  // NCCL's numbers, see abi.h
  int root = 0;           // or peer
};
int rank_of(const CommRef&);
int size_of(const CommRef&);
EngineRef engine_of(const CommRef&);
EngineRef engine_of(const BlockRef&);
size_t bytes_of(const BlockRef&);

void collective(const CommRef&, std::vector<Operation>, std::string label, int64_t timeout_ms, Completion);

struct Stats {
  uint64_t heartbeat = 0;
  size_t queued = 0, in_flight = 0, leaked_communicators = 0;
  size_t reserved_bytes = 0, used_bytes = 0, free_bytes = 0, total_bytes = 0;
};
Stats stats(const EngineRef&);

struct FlightRecord {
  std::string communicator, label, error;
  uint64_t sequence = 0;
  enum State { Queued, Issued, Launched, Done, Failed } state = Queued;
  // Since the device was opened; -1: not reached.
  double queued_ms = 0, issued_ms = -1, launched_ms = -1, ended_ms = -1;
};
std::vector<FlightRecord> flight_recorder(const EngineRef&);

}  // namespace lockstep
