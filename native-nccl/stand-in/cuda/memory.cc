// Device memory, pinned host memory, and the blocks that an allocator makes of them.
#include <algorithm>
#include <cstring>

#include "driver.h"

namespace stand_in {

// A device pointer is the host pointer with this bit: not canonical, so that following it on the host faults.
static const uint64_t DeviceBit = 1ull << 62;
// New memory is not zeroed, and freed memory does not keep its contents: of pinned host memory, as far as this. A process
// takes tens of MiB of it and uses little, and filling all takes longer than most tests.
enum { NewFill = 0xCD, FreedFill = 0xDB };
constexpr uint64_t HostFillBytes = 1 << 18;

uint64_t total_bytes() { return static_cast<uint64_t>(number("STANDIN_CUDA_MEM_MB", 1024)) << 20; }

std::shared_ptr<Allocation> find_allocation(uint64_t pointer) {
  auto after = driver().allocations.upper_bound(pointer);
  if (after == driver().allocations.begin()) return nullptr;
  auto& allocation = std::prev(after)->second;
  return pointer < allocation->base + allocation->bytes ? allocation : nullptr;
}

static void fill(const Allocation& allocation, int value) {
  const uint64_t limit = allocation.device == HostMemory ? HostFillBytes : allocation.bytes;
  std::memset(allocation.host, value, std::min(allocation.bytes, limit));
}

static std::shared_ptr<Allocation> allocate(int device, size_t bytes, size_t alignment) {
  void* host = nullptr;
  if (posix_memalign(&host, alignment, bytes)) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->device = device;
  allocation->base = reinterpret_cast<uint64_t>(host) | (device == HostMemory ? 0 : DeviceBit);
  allocation->bytes = bytes;
  allocation->host = host;
  fill(*allocation, NewFill);
  driver().allocations[allocation->base] = allocation;
  return allocation;
}

// Freed memory is kept for a while, so that a late use is found; then its addresses may be used again.
static void put_into_quarantine(const std::shared_ptr<Allocation>& allocation) {
  Driver& state = driver();
  allocation->is_freed = true;
  fill(*allocation, FreedFill);
  state.quarantine.push_back(allocation);
  uint64_t kept = 0;
  for (auto& freed : state.quarantine) kept += freed->bytes;
  const uint64_t limit = static_cast<uint64_t>(number("STANDIN_CUDA_QUARANTINE_MB", 64)) << 20;
  while (kept > limit && state.quarantine.size() > 1) {
    kept -= state.quarantine.front()->bytes;
    state.allocations.erase(state.quarantine.front()->base);
    state.quarantine.pop_front();
  }
}

void free_all(int device) {
  std::vector<std::shared_ptr<Allocation>> all;
  for (auto& [base, allocation] : driver().allocations) {
    if (allocation->device == device && !allocation->is_freed) all.push_back(allocation);
  }
  for (auto& allocation : all) put_into_quarantine(allocation);
  driver().devices[device].used = 0;
}

static CUresult release(uint64_t pointer, bool is_host, const char* function) {
  Driver& state = driver();
  Lock lock(state.mutex);
  const auto valid = [&] {
    auto found = state.allocations.find(pointer);
    if (found == state.allocations.end() || found->second->is_freed) return std::shared_ptr<Allocation>();
    return (found->second->device == HostMemory) == is_host ? found->second : nullptr;
  };
  auto allocation = valid();
  // The real function waits for the device.
  if (allocation && text("STANDIN_CUDA_FREE") != "nosync") {
    wait_for_device(lock, is_host ? current_device() : allocation->device);
    allocation = valid();
  }
  if (!allocation) {
    fail("BAD-FREE", std::string(function) + " of memory that was freed before, or never allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& [address, block] : allocation->blocks) {
    if (!block.is_live) continue;
    fail("BAD-FREE", std::string(function) + " of memory with a live block in it");
    break;
  }
  if (!is_host) state.devices[allocation->device].used -= allocation->bytes;
  put_into_quarantine(allocation);
  return CUDA_SUCCESS;
}

static void note_live(Allocation& allocation, uint64_t pointer, uint64_t bytes) {
  auto& blocks = allocation.blocks;
  auto block = blocks.upper_bound(pointer);
  if (block != blocks.begin() && std::prev(block)->first + std::prev(block)->second.bytes > pointer) --block;
  else if (block != blocks.begin() && std::prev(block)->first == pointer) --block;
  while (block != blocks.end() && block->first < pointer + bytes) {
    if (block->second.is_live) fail("BAD-NOTE", "a new block overlaps a live one");
    block = blocks.erase(block);
  }
  blocks[pointer] = {bytes, true};
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT void standin_cuda_note_block(CUdeviceptr pointer, size_t bytes, int is_live) {
  Lock lock(driver().mutex);
  auto allocation = find_allocation(pointer);
  if (!allocation || allocation->is_freed || pointer + bytes > allocation->base + allocation->bytes) {
    return fail("BAD-NOTE", "a block is not inside one live allocation");
  }
  if (is_live) return note_live(*allocation, pointer, bytes);
  auto block = allocation->blocks.find(pointer);
  if (block == allocation->blocks.end() || !block->second.is_live) {
    return fail("BAD-FREE", "a block was released that is not live");
  }
  block->second.is_live = false;
}

STANDIN_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  STANDIN_CONTEXT_CALL(cuMemGetInfo_v2);
  Lock lock(driver().mutex);
  *total = total_bytes();
  *free_bytes = *total - std::min<uint64_t>(*total, driver().devices[current_device()].used);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  STANDIN_CONTEXT_CALL(cuMemAlloc_v2);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(driver().mutex);
  Device& device = driver().devices[current_device()];
  if (bytes > total_bytes() || device.used + bytes > total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = allocate(current_device(), bytes, 512);
  if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
  device.used += bytes;
  *pointer = allocation->base;
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  STANDIN_CONTEXT_CALL(cuMemFree_v2);
  return pointer ? release(pointer, false, "cuMemFree") : CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  STANDIN_CONTEXT_CALL(cuMemHostAlloc);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(driver().mutex);
  auto allocation = allocate(HostMemory, bytes, 4096);
  if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = allocation->host;
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuMemFreeHost(void* pointer) {
  STANDIN_CONTEXT_CALL(cuMemFreeHost);
  return pointer ? release(reinterpret_cast<uint64_t>(pointer), true, "cuMemFreeHost") : CUDA_ERROR_INVALID_VALUE;
}
