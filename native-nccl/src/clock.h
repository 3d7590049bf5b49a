// The one clock of the engine: it never jumps.
#pragma once
#include <chrono>
#include <cstdint>

namespace lockstep {

inline double clock_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A deadline is taken once, when a call comes in.
inline double deadline_after(int64_t timeout_ms) { return clock_ms() + static_cast<double>(timeout_ms); }

}  // namespace lockstep
