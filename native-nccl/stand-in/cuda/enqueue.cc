// The one way work gets onto a stream: accesses are declared when it is enqueued, addresses are resolved when it runs.
#include "driver.h"

namespace stand_in {

// The ranges as host addresses; false, and reported, where one of them is not there (any more).
static bool resolve(const std::vector<StandInRange>& ranges, int device, const std::string& name,
                    std::vector<void*>* host, std::vector<std::shared_ptr<Allocation>>* held) {
  Lock lock(driver().mutex);
  for (const StandInRange& range : ranges) {
    if (!range.bytes) {
      host->push_back(nullptr);
      continue;
    }
    auto allocation = find_allocation(range.pointer);
    const char* kind = nullptr;
    if (!allocation || range.pointer + range.bytes > allocation->base + allocation->bytes) kind = "OUT-OF-BOUNDS";
    else if (allocation->is_freed) kind = "USE-AFTER-FREE";
    else if (allocation->device != HostMemory && allocation->device != device) kind = "WRONG-DEVICE";
    if (kind) {
      char words[96];
      std::snprintf(words, sizeof words, " touches [%llx, +%zu)", range.pointer, range.bytes);
      fail(kind, name + words);
      return false;
    }
    host->push_back(static_cast<char*>(allocation->host) + (range.pointer - allocation->base));
    held->push_back(allocation);
  }
  return true;
}

CUresult enqueue(CUstream handle, const std::string& name, std::vector<StandInRange> ranges, bool counts,
                 std::function<int(void** host)> run) {
  Driver& state = driver();
  Lock lock(state.mutex);
  auto stream = find_stream(handle);
  if (!stream) {
    if (!handle) fail("NULL-STREAM", name + " on the default stream, which synchronises everything");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  Device& device = state.devices[stream->device];
  if (const int sticky = device.sticky.load()) return sticky;
  const bool is_struck = counts && ++device.operations == number("STANDIN_CUDA_STICKY_AT", 0);
  join(stream->clock, state.host);
  if (stream->clock.size() <= stream->entity) stream->clock.resize(stream->entity + 1);
  stream->clock[stream->entity]++;
  bool is_allowed = true;
  for (const StandInRange& range : ranges) {
    auto allocation = range.bytes ? find_allocation(range.pointer) : nullptr;
    if (!allocation || allocation->is_freed) continue;
    is_allowed = declare_access(*allocation, range, *stream, name) && is_allowed;
  }
  Work work;
  work.run = [=, device_index = stream->device]() -> CUresult {
    std::vector<void*> host;
    std::vector<std::shared_ptr<Allocation>> held;
    if (is_struck || !is_allowed) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!resolve(ranges, device_index, name, &host, &held)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    return run(host.data());
  };
  push(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT CUresult standin_cuda_enqueue(CUstream stream, const char* name, const StandInRange* ranges, int count,
                                             int (*run)(void* data, void** host), void* data,
                                             void (*drop)(void* data)) {
  // Dropped with the last copy of the work that holds it: after it ran, or instead of it.
  std::shared_ptr<void> owned(data, drop);
  return enqueue(stream, name, {ranges, ranges + count}, false, [=](void** host) { return run(owned.get(), host); });
}
