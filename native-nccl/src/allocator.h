// Caching allocator of device memory: slabs from the driver, cut into chunks. Freed chunks join their free neighbours
// and keep the marks of their last use, so that the next owner waits for it on the device. Slabs go back to the driver
// only through take_unused: cuMemFree waits for the device, so it must never run on the thread that has to abort a hung
// collective.
#pragma once
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "hazards.h"
#include "status.h"

namespace lockstep {

struct Slab {
  CUdeviceptr base = 0;
  size_t bytes = 0;
};

// A part of a slab, in a chain of neighbours by address.
struct Chunk {
  Chunk(const Slab& slab, bool is_small, size_t bytes) : slab(slab), is_small(is_small), bytes(bytes) {}

  const Slab slab;
  const bool is_small;
  size_t bytes, offset = 0;
  bool is_free = false;
  Chunk* before = nullptr;
  Chunk* after = nullptr;
  Hazards hazards;  // of a free one

  CUdeviceptr address() const { return slab.base + offset; }
  bool is_whole_slab() const { return bytes == slab.bytes; }
};

struct MemoryUse {
  size_t reserved_bytes = 0, used_bytes = 0;
};

class Allocator {
 public:
  ~Allocator();

  // From memory at hand; null where there is none.
  Chunk* reuse(size_t bytes);
  // From a new slab; the context must be current. Null and CUDA_ERROR_OUT_OF_MEMORY or another error of the driver.
  Chunk* grow(size_t bytes, CUresult* error);
  void release(Chunk* chunk, Hazards&& hazards);

  // Slabs of which nothing is used, and which the device is done with. The caller frees them, then says so.
  std::vector<Slab> take_unused();
  void note_freed(const Slab& slab);
  // All slabs, when the device is closed and idle; chunks in use are dead from then on.
  std::vector<Slab> take_all();

  MemoryUse use() const;

 private:
  struct BySize {
    bool operator()(const Chunk* a, const Chunk* b) const;
  };
  using FreeChunks = std::set<Chunk*, BySize>;

  FreeChunks& free_chunks(const Chunk* chunk) { return chunk->is_small ? small_ : large_; }
  Chunk* take(Chunk* chunk, size_t bytes);
  Chunk* join(Chunk* first, Chunk* second);

  mutable std::mutex mutex_;
  FreeChunks small_, large_;
  std::list<Slab> slabs_;
  std::set<Chunk*> all_;  // owns them
  MemoryUse use_;
  bool is_closed_ = false;
};

}  // namespace lockstep
