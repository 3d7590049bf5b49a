#include "allocator.h"

#include <algorithm>
#include <utility>

#include "library.h"

namespace lockstep {

namespace {

constexpr size_t small_unit = 512;
constexpr size_t large_unit = size_t(2) << 20;
constexpr size_t small_limit = size_t(1) << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Even of nothing a block has an address.
size_t rounded(size_t bytes) {
  if (bytes >= small_limit) return round_up(bytes, large_unit);
  return round_up(std::max(bytes, size_t(1)), small_unit);
}

void tell_standin(const Chunk* chunk, bool is_live) {
  if (cuda().standin_cuda_note_block) cuda().standin_cuda_note_block(chunk->address(), chunk->bytes, is_live);
}

}  // namespace

bool Allocator::BySize::operator()(const Chunk* a, const Chunk* b) const {
  return std::make_pair(a->bytes, a->address()) < std::make_pair(b->bytes, b->address());
}

Allocator::~Allocator() {
  for (Chunk* chunk : all_) delete chunk;
}

Chunk* Allocator::reuse(size_t bytes) {
  bytes = rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  FreeChunks& chunks = bytes < small_limit ? small_ : large_;
  Chunk wanted(Slab{}, false, bytes);
  auto found = chunks.lower_bound(&wanted);
  return found == chunks.end() ? nullptr : take(*found, bytes);
}

Chunk* Allocator::grow(size_t bytes, CUresult* error) {
  bytes = rounded(bytes);
  bool is_small = bytes < small_limit;
  Slab slab;
  slab.bytes = is_small ? large_unit : bytes;
  *error = cuda().cuMemAlloc_v2(&slab.base, slab.bytes);
  if (*error) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  auto* chunk = new Chunk(slab, is_small, slab.bytes);
  chunk->is_free = true;
  all_.insert(chunk);
  slabs_.push_back(slab);
  free_chunks(chunk).insert(chunk);
  use_.reserved_bytes += slab.bytes;
  return take(chunk, bytes);
}

// Cuts off what is more than `bytes`; both parts keep the marks.
Chunk* Allocator::take(Chunk* chunk, size_t bytes) {
  free_chunks(chunk).erase(chunk);
  if (chunk->bytes > bytes) {
    auto* rest = new Chunk(chunk->slab, chunk->is_small, chunk->bytes - bytes);
    rest->offset = chunk->offset + bytes;
    rest->is_free = true;
    rest->before = chunk;
    rest->after = chunk->after;
    rest->hazards = chunk->hazards;
    if (rest->after) rest->after->before = rest;
    chunk->after = rest;
    chunk->bytes = bytes;
    all_.insert(rest);
    free_chunks(rest).insert(rest);
  }
  chunk->is_free = false;
  use_.used_bytes += chunk->bytes;
  tell_standin(chunk, true);
  return chunk;
}

void Allocator::release(Chunk* chunk, Hazards&& hazards) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.used_bytes -= chunk->bytes;
  if (is_closed_) return;
  tell_standin(chunk, false);
  chunk->hazards = std::move(hazards);
  chunk->is_free = true;
  if (chunk->before && chunk->before->is_free) chunk = join(chunk->before, chunk);
  if (chunk->after && chunk->after->is_free) chunk = join(chunk, chunk->after);
  free_chunks(chunk).insert(chunk);
}

Chunk* Allocator::join(Chunk* first, Chunk* second) {
  free_chunks(first).erase(first);
  free_chunks(second).erase(second);
  first->bytes += second->bytes;
  first->after = second->after;
  if (first->after) first->after->before = first;
  first->hazards.merge(second->hazards);
  all_.erase(second);
  delete second;
  return first;
}

std::vector<Slab> Allocator::take_unused() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Slab> unused;
  for (FreeChunks* chunks : {&small_, &large_}) {
    for (auto it = chunks->begin(); it != chunks->end();) {
      Chunk* chunk = *it;
      if (!chunk->is_whole_slab() || !chunk->hazards.is_clear()) {
        ++it;
        continue;
      }
      it = chunks->erase(it);
      unused.push_back(chunk->slab);
      all_.erase(chunk);
      delete chunk;
    }
  }
  slabs_.remove_if([&](const Slab& slab) {
    return std::any_of(unused.begin(), unused.end(), [&](const Slab& other) { return other.base == slab.base; });
  });
  return unused;
}

void Allocator::note_freed(const Slab& slab) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.reserved_bytes -= slab.bytes;
}

std::vector<Slab> Allocator::take_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  for (const Chunk* chunk : all_) {
    if (!chunk->is_free) tell_standin(chunk, false);
  }
  small_.clear();
  large_.clear();
  std::vector<Slab> all(slabs_.begin(), slabs_.end());
  slabs_.clear();
  return all;
}

MemoryUse Allocator::use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

}  // namespace lockstep
