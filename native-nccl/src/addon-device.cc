// Devices: open, close, wait, launch kernels, statistics, flight recorder.
#include <utility>

#include "addon.h"

namespace lockstep {

namespace {

constexpr int largest_thread_block = 1024;

struct Opening {
  Opening(const Napi::CallbackInfo& info, const char* function)
      : index(static_cast<int>(Argument(info, 0, function, "index").whole(0, largest_int))) {
    Argument option = Argument(info, 1, function, "options").field("ptx");
    if (!option.is_missing()) ptx = option.text();
  }
  int index;
  std::string ptx;
};

Napi::Value open(const Napi::CallbackInfo& info) {
  Opening opening(info, "openDevice");
  return Instance::of(info.Env()).open_engine(info.Env(), opening.index, std::move(opening.ptx));
}

Napi::Value open_at_once(const Napi::CallbackInfo& info) {
  Opening opening(info, "openDeviceSync");
  Status status;
  EngineRef engine = open_device(opening.index, opening.ptx, &status);
  if (!status.ok()) throw Failure{status};
  Instance::of(info.Env()).add(engine);
  return Napi::Value(info.Env(), wrap(info.Env(), DeviceHandle{engine}));
}

Napi::Value close(const Napi::CallbackInfo& info) {
  const EngineRef& engine = Argument(info, 0, "closeDevice", "device").handle<DeviceHandle>().engine;
  return Instance::of(info.Env()).close_engine(info.Env(), engine);
}

Napi::Value wait(const Napi::CallbackInfo& info) {
  EngineRef engine = Argument(info, 0, "synchronize", "device").handle<DeviceHandle>().engine;
  int64_t timeout_ms = Argument(info, 1, "synchronize", "timeoutMs").timeout();
  return Instance::of(info.Env()).promise(info.Env(), [&](Completion complete) {
    synchronize(engine, timeout_ms, std::move(complete));
  });
}

KernelArgument read_argument(const Argument& argument, const EngineRef& engine) {
  KernelArgument result{};
  if (Argument block = argument.field("block"); !block.is_missing()) {
    result.kind = KernelArgument::Pointer;
    result.block = block.block();
    Argument offset = argument.field("byteOffset"), bytes = argument.field("byteLength");
    result.offset = offset.count();
    result.bytes = bytes.count();
    result.is_written = argument.field("isWritten").flag();
    if (engine_of(result.block) != engine) block.fail_range("a block of the device that the kernel runs on");
    if (result.offset > bytes_of(result.block)) offset.fail_range("a place in the block");
    if (result.bytes > bytes_of(result.block) - result.offset) bytes.fail_range("a length that ends in the block");
  } else if (Argument uint64 = argument.field("uint64"); !uint64.is_missing()) {
    result.kind = KernelArgument::UInt64;
    result.uint64 = uint64.count();
  } else if (Argument int32 = argument.field("int32"); !int32.is_missing()) {
    result.kind = KernelArgument::Int32;
    result.int32 = static_cast<int32_t>(int32.whole(-int64_t{largest_int} - 1, largest_int));
  } else if (Argument float32 = argument.field("float32"); !float32.is_missing()) {
    result.kind = KernelArgument::Float32;
    result.float32 = static_cast<float>(float32.number());
  } else {
    argument.fail_type("an object with one of block, uint64, int32, float32");
  }
  return result;
}

Napi::Value launch_kernel(const Napi::CallbackInfo& info) {
  EngineRef engine = Argument(info, 0, "launch", "device").handle<DeviceHandle>().engine;
  Argument kernel(info, 1, "launch", "kernel"), list(info, 4, "launch", "args");
  std::string name = kernel.text();
  auto grid = static_cast<unsigned>(Argument(info, 2, "launch", "gridSize").whole(1, largest_int));
  auto block = static_cast<unsigned>(Argument(info, 3, "launch", "blockSize").whole(1, largest_thread_block));
  std::vector<KernelArgument> arguments;
  arguments.reserve(list.length());
  for (uint32_t i = 0; i < list.length(); i++) arguments.push_back(read_argument(list.element(i), engine));
  if (!has_kernel(engine, name)) kernel.fail_range("a kernel of the module that the device was opened with");
  launch(engine, name, grid, block, std::move(arguments));
  return info.Env().Undefined();
}

Napi::Value read_stats(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Stats read = stats(Argument(info, 0, "stats", "device").handle<DeviceHandle>().engine);
  auto result = Napi::Object::New(env);
  auto set = [&](const char* name, uint64_t value) { result.Set(name, Napi::Number::New(env, double(value))); };
  set("heartbeat", read.heartbeat);
  set("queued", read.queued);
  set("inFlight", read.in_flight);
  set("reservedBytes", read.reserved_bytes);
  set("usedBytes", read.used_bytes);
  set("freeBytes", read.free_bytes);
  set("totalBytes", read.total_bytes);
  set("leakedCommunicators", read.leaked_communicators);
  return result;
}

Napi::Value read_flight_recorder(const Napi::CallbackInfo& info) {
  static const char* const states[] = {"queued", "issued", "launched", "done", "failed"};
  Napi::Env env = info.Env();
  auto records = flight_recorder(Argument(info, 0, "flightRecorder", "device").handle<DeviceHandle>().engine);
  auto result = Napi::Array::New(env, records.size());
  for (uint32_t i = 0; i < records.size(); i++) {
    const FlightRecord& record = records[i];
    auto entry = Napi::Object::New(env);
    auto set_time = [&](const char* name, double ms) {
      if (ms >= 0) entry.Set(name, Napi::Number::New(env, ms));
    };
    entry.Set("communicator", record.communicator);
    entry.Set("sequence", Napi::Number::New(env, double(record.sequence)));
    entry.Set("label", record.label);
    entry.Set("state", states[record.state]);
    set_time("queuedMs", record.queued_ms);
    set_time("issuedMs", record.issued_ms);
    set_time("launchedMs", record.launched_ms);
    set_time("endedMs", record.ended_ms);
    if (!record.error.empty()) entry.Set("error", record.error);
    result.Set(i, entry);
  }
  return result;
}

}  // namespace

void add_device_functions(Napi::Env env, Napi::Object exports) {
  exports.Set("openDevice", Napi::Function::New(env, rejecting<open>, "openDevice"));
  exports.Set("openDeviceSync", Napi::Function::New(env, throwing<open_at_once>, "openDeviceSync"));
  exports.Set("closeDevice", Napi::Function::New(env, rejecting<close>, "closeDevice"));
  exports.Set("synchronize", Napi::Function::New(env, rejecting<wait>, "synchronize"));
  exports.Set("launch", Napi::Function::New(env, throwing<launch_kernel>, "launch"));
  exports.Set("stats", Napi::Function::New(env, throwing<read_stats>, "stats"));
  exports.Set("flightRecorder", Napi::Function::New(env, throwing<read_flight_recorder>, "flightRecorder"));
}

}  // namespace lockstep
