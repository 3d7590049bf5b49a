// May this work touch these bytes? See [Note: happens-before] in driver.h.
#include "driver.h"

namespace stand_in {

static std::string describe(const StandInRange& range, const std::string& operation) {
  char words[96];
  const char* verb = range.is_written ? "writes" : "reads";
  std::snprintf(words, sizeof words, " %s [%llx, +%zu)", verb, range.pointer, range.bytes);
  return operation + words;
}

// Bytes of an allocation that an allocator has divided must lie inside one live block.
static bool is_inside_block(const Allocation& allocation, const StandInRange& range, const std::string& operation) {
  if (allocation.blocks.empty()) return true;
  auto after = allocation.blocks.upper_bound(range.pointer);
  if (after != allocation.blocks.begin()) {
    const auto& [address, block] = *std::prev(after);
    if (range.pointer < address + block.bytes) {
      if (!block.is_live) {
        fail("USE-AFTER-FREE", describe(range, operation) + " of a block that was released before");
        return false;
      }
      if (range.pointer + range.bytes <= address + block.bytes) return true;
    }
  }
  fail("OUT-OF-BOUNDS", describe(range, operation) + ", which is not inside one block");
  return false;
}

bool declare_access(Allocation& allocation, const StandInRange& range, const Stream& stream,
                    const std::string& operation) {
  if (!is_inside_block(allocation, range, operation)) return false;
  if (!number("STANDIN_CUDA_RACE", 1)) return true;
  const Access mine{range.pointer,  range.pointer + range.bytes, range.is_written != 0,
                    stream.entity, stream.clock[stream.entity], operation};
  const auto knows = [](const VectorClock& clock, const Access& other) {
    return other.entity < clock.size() && clock[other.entity] >= other.clock;
  };
  std::vector<Access> kept;
  for (Access& other : allocation.accesses) {
    // What the host knows of is ordered before all that comes later: every enqueue joins the host's clock.
    if (knows(driver().host, other)) continue;
    const bool overlaps = other.first < mine.end && mine.first < other.end;
    const bool is_ordered = knows(stream.clock, other);
    if (overlaps && !is_ordered && (mine.is_write || other.is_write)) {
      fail("RACE", describe(range, operation) + " is not ordered after the " + (other.is_write ? "write" : "read") +
                       " by " + other.operation + " (a wait is missing)");
    }
    // What must come after this access then also comes after the covered one.
    const bool is_covered = is_ordered && mine.first <= other.first && mine.end >= other.end &&
                            (mine.is_write || !other.is_write);
    if (!is_covered) kept.push_back(std::move(other));
  }
  kept.push_back(mine);
  allocation.accesses.swap(kept);
  return true;
}

}  // namespace stand_in
