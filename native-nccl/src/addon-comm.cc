// Communicators: make, split, end, and the operations on them.
#include <cstring>
#include <iterator>
#include <utility>

#include "abi.h"
#include "addon.h"

namespace lockstep {

namespace {

constexpr size_t id_bytes = sizeof(ncclUniqueId);

const char* const kind_names[] = {"allReduce", "broadcast", "reduce", "allGather", "reduceScatter", "send", "recv"};
const char* const dtype_names[] = {"int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"};
constexpr struct {
  int nccl;
  size_t bytes;
} dtypes[] = {{ncclInt8, 1},    {ncclUint8, 1},    {ncclInt32, 4},   {ncclInt64, 8},
              {ncclFloat16, 2}, {ncclBfloat16, 2}, {ncclFloat32, 4}, {ncclFloat64, 8}};
const char* const op_names[] = {"sum", "product", "min", "max", "average"};
constexpr int ops[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};

Napi::Value init(const Napi::CallbackInfo& info) {
  EngineRef engine = Argument(info, 0, "commInit", "device").handle<DeviceHandle>().engine;
  Argument options(info, 1, "commInit", "options");
  InitOptions read;
  read.size = static_cast<int>(options.field("size").whole(1, largest_int));
  read.rank = static_cast<int>(options.field("rank").whole(0, read.size - 1));
  read.timeout_ms = options.field("timeoutMs").timeout();
  read.name = options.field("name").text();
  Argument id = options.field("id");
  View view = id.view();
  if (view.bytes != id_bytes) id.fail_range(std::to_string(id_bytes) + " bytes");
  std::memcpy(read.id, view.data, id_bytes);
  return Instance::of(info.Env()).promise_communicator(info.Env(), [&](CommCompletion complete) {
    comm_init(engine, read, std::move(complete));
  });
}

Napi::Value split(const Napi::CallbackInfo& info) {
  CommRef parent = Argument(info, 0, "commSplit", "parent").handle<CommunicatorHandle>().communicator;
  Argument options(info, 1, "commSplit", "options");
  int color = static_cast<int>(options.field("color").whole(-1, largest_int));
  int key = static_cast<int>(options.field("key").whole(-int64_t{largest_int} - 1, largest_int));
  int64_t timeout_ms = options.field("timeoutMs").timeout();
  std::string name = options.field("name").text();
  return Instance::of(info.Env()).promise_communicator(info.Env(), [&](CommCompletion complete) {
    comm_split(parent, color, key, timeout_ms, name, std::move(complete));
  });
}

// A part of a block of the communicator's device, `count` elements long.
size_t read_operand(const Argument& argument, const CommRef& communicator, size_t count, size_t element,
                    BlockRef* block) {
  *block = argument.field("block").block();
  if (engine_of(*block) != engine_of(communicator)) {
    argument.field("block").fail_range("a block of the communicator's device");
  }
  Argument place = argument.field("byteOffset");
  size_t offset = place.count(), bytes = 0;
  if (offset % element != 0) place.fail_range("a multiple of " + std::to_string(element) + " bytes");
  bool is_too_long = __builtin_mul_overflow(count, element, &bytes);
  if (is_too_long || offset > bytes_of(*block) || bytes > bytes_of(*block) - offset) {
    place.fail_range("a place from which " + std::to_string(count) + " elements of " + std::to_string(element) +
                     " bytes are in a block of " + std::to_string(bytes_of(*block)));
  }
  return offset;
}

// Operands that share memory must be in place in NCCL's sense; any other overlap would give garbage.
void check_overlap(const Argument& argument, const Operation& operation, const CommRef& communicator, size_t element) {
  if (!operation.send || operation.send != operation.recv || operation.count == 0) return;
  auto size = static_cast<size_t>(size_of(communicator)), rank = static_cast<size_t>(rank_of(communicator));
  size_t part = operation.count * element;
  size_t send_bytes = operation.kind == Operation::ReduceScatter ? part * size : part;
  size_t recv_bytes = operation.kind == Operation::AllGather ? part * size : part;
  size_t send_from = operation.send_offset, recv_from = operation.recv_offset;
  if (send_from + send_bytes <= recv_from || recv_from + recv_bytes <= send_from) return;
  if (operation.kind == Operation::AllGather) recv_from += rank * part;
  if (operation.kind == Operation::ReduceScatter) send_from += rank * part;
  if (send_from != recv_from) argument.fail_range("send and recv that do not overlap, or are in place for this rank");
}

Operation read_operation(const Argument& argument, const CommRef& communicator) {
  Operation result{};
  int size = size_of(communicator);
  result.kind = static_cast<Operation::Kind>(argument.field("kind").one_of(kind_names, std::size(kind_names)));
  const auto& dtype = dtypes[argument.field("dtype").one_of(dtype_names, std::size(dtype_names))];
  result.dtype = dtype.nccl;
  Argument count = argument.field("count");
  result.count = count.count();
  size_t of_all = 0;
  if (__builtin_mul_overflow(result.count, static_cast<size_t>(size), &of_all)) count.fail_range("a smaller count");

  auto kind = result.kind;
  bool is_reduction = kind == Operation::AllReduce || kind == Operation::Reduce || kind == Operation::ReduceScatter;
  bool is_message = kind == Operation::Send || kind == Operation::Recv;
  if (is_reduction) result.op = ops[argument.field("op").one_of(op_names, std::size(op_names))];
  if (kind == Operation::Broadcast || kind == Operation::Reduce || is_message) {
    result.root = static_cast<int>(argument.field(is_message ? "peer" : "root").whole(0, size - 1));
  }
  if (kind != Operation::Recv) {
    size_t sent = kind == Operation::ReduceScatter ? of_all : result.count;
    result.send_offset = read_operand(argument.field("send"), communicator, sent, dtype.bytes, &result.send);
  }
  bool has_no_result = kind == Operation::Reduce && rank_of(communicator) != result.root;
  if (kind != Operation::Send && !has_no_result) {
    size_t received = kind == Operation::AllGather ? of_all : result.count;
    result.recv_offset = read_operand(argument.field("recv"), communicator, received, dtype.bytes, &result.recv);
  }
  check_overlap(argument, result, communicator, dtype.bytes);
  return result;
}

Napi::Value run_collective(const Napi::CallbackInfo& info) {
  CommRef communicator = Argument(info, 0, "collective", "communicator").handle<CommunicatorHandle>().communicator;
  Argument list(info, 1, "collective", "operations"), options(info, 2, "collective", "options");
  std::string label = options.field("label").text();
  int64_t timeout_ms = options.field("timeoutMs").timeout();
  uint32_t length = list.length();
  if (length == 0) list.fail_range("one operation or more");
  std::vector<Operation> operations;
  operations.reserve(length);
  for (uint32_t i = 0; i < length; i++) operations.push_back(read_operation(list.element(i), communicator));
  return Instance::of(info.Env()).promise(info.Env(), [&](Completion complete) {
    collective(communicator, std::move(operations), label, timeout_ms, std::move(complete));
  });
}

Napi::Value abort(const Napi::CallbackInfo& info) {
  Argument list(info, 0, "commAbort", "communicators");
  std::string reason = Argument(info, 1, "commAbort", "reason").text();
  std::vector<CommRef> communicators;
  for (uint32_t i = 0; i < list.length(); i++) {
    communicators.push_back(list.element(i).handle<CommunicatorHandle>().communicator);
  }
  comm_abort(communicators, reason);
  return info.Env().Undefined();
}

Napi::Value destroy(const Napi::CallbackInfo& info) {
  CommRef communicator = Argument(info, 0, "commDestroy", "communicator").handle<CommunicatorHandle>().communicator;
  int64_t timeout_ms = Argument(info, 1, "commDestroy", "timeoutMs").timeout();
  return Instance::of(info.Env()).promise(info.Env(), [&](Completion complete) {
    comm_destroy(communicator, timeout_ms, std::move(complete));
  });
}

}  // namespace

void add_communicator_functions(Napi::Env env, Napi::Object exports) {
  exports.Set("commInit", Napi::Function::New(env, rejecting<init>, "commInit"));
  exports.Set("commSplit", Napi::Function::New(env, rejecting<split>, "commSplit"));
  exports.Set("collective", Napi::Function::New(env, rejecting<run_collective>, "collective"));
  exports.Set("commAbort", Napi::Function::New(env, throwing<abort>, "commAbort"));
  exports.Set("commDestroy", Napi::Function::New(env, rejecting<destroy>, "commDestroy"));
}

}  // namespace lockstep
