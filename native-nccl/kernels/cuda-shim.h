// Lets a .cu file of plain kernels compile with a C++ compiler and run on the CPU, for tests and the stand-in driver.
//
// `__shared__` memory is static and of the OS thread: a launch runs its blocks one after the other. Kernels that use
// barriers or shuffles are entered in a table by KERNEL_WITH_BARRIERS, and their blocks are fibers (fibers.h); all
// others are plain loops over the threads. Not here: atomics, ballots, dynamic shared memory, masks of part of a warp.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fibers.h"
#include "kernel-table.h"

#define __global__
#define __device__
#define __shared__ static thread_local
#define threadIdx (::lockstep::shim::position.thread)
#define blockIdx (::lockstep::shim::position.block)
#define blockDim (::lockstep::shim::position.block_size)
#define gridDim (::lockstep::shim::position.grid_size)
#define __syncthreads() ::lockstep::shim::fibers("__syncthreads", __LINE__).block_barrier(__LINE__)
#define __shfl_down_sync(mask, value, delta) ::lockstep::shim::shuffle_down(mask, value, delta, __LINE__)
#define __shfl_xor_sync(mask, value, bits) ::lockstep::shim::shuffle_xor(mask, value, bits, __LINE__)

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

namespace lockstep::shim {

inline Fibers& fibers(const char* what, int line) {
  if (Fibers::current()) return *Fibers::current();
  throw KernelFault(
      std::string(what) + " in line " + std::to_string(line) + ", in a kernel entered as one without barriers");
}

// A lane beyond the warp gives the thread's own value, as on a GPU.
template <class T>
T shuffle_down(unsigned mask, T value, unsigned delta, int line) {
  Fibers& block = fibers("__shfl_down_sync", line);
  const unsigned source = block.lane() + delta;
  return block.shuffle(mask, value, source < warp_size ? source : block.lane(), line);
}

template <class T>
T shuffle_xor(unsigned mask, T value, unsigned bits, int line) {
  Fibers& block = fibers("__shfl_xor_sync", line);
  return block.shuffle(mask, value, (block.lane() ^ bits) % warp_size, line);
}

// The parameter block of a kernel: each parameter at the next multiple of its alignment.
template <class... Parameters>
const std::vector<StandInParameter>& layout() {
  static const std::vector<StandInParameter> parameters = [] {
    std::vector<StandInParameter> list;
    size_t offset = 0;
    [[maybe_unused]] const auto add = [&](bool is_pointer, bool is_const, size_t bytes, size_t alignment) {
      offset = (offset + alignment - 1) / alignment * alignment;
      list.push_back({is_pointer, is_const, offset, bytes});
      offset += bytes;
    };
    (add(std::is_pointer_v<Parameters>, std::is_const_v<std::remove_pointer_t<Parameters>>, sizeof(Parameters),
         alignof(Parameters)),
     ...);
    return list;
  }();
  return parameters;
}

template <class Parameter>
Parameter read_parameter(const void* block, const StandInParameter& place) {
  Parameter value;
  std::memcpy(&value, static_cast<const char*>(block) + place.offset, sizeof value);
  return value;
}

// Calls `each` for every index below `size`, x fastest.
template <class Each>
void for_each_index(Index size, Each each) {
  for (unsigned z = 0; z < size.z; z++) {
    for (unsigned y = 0; y < size.y; y++) {
      for (unsigned x = 0; x < size.x; x++) each(Index{x, y, z});
    }
  }
}

template <auto Kernel>
struct Launch;

template <class... Parameters, void (*Kernel)(Parameters...)>
struct Launch<Kernel> {
  using Values = std::tuple<Parameters...>;

  template <size_t... I>
  static Values read([[maybe_unused]] const void* block, std::index_sequence<I...>) {
    return Values{read_parameter<Parameters>(block, layout<Parameters...>()[I])...};
  }

  static void call(const void* values) { std::apply(Kernel, *static_cast<const Values*>(values)); }

  template <bool HasBarriers>
  static void run(const void* parameters, const unsigned grid[3], const unsigned block[3], size_t) {
    const Values values = read(parameters, std::index_sequence_for<Parameters...>{});
    position.grid_size = {grid[0], grid[1], grid[2]};
    position.block_size = {block[0], block[1], block[2]};
    std::vector<Index> threads;
    for_each_index(position.block_size, [&](Index thread) { threads.push_back(thread); });
    static thread_local Fibers block_of_fibers;
    for_each_index(position.grid_size, [&](Index index) {
      position.block = index;
      if (HasBarriers) return block_of_fibers.run(threads, call, &values);
      for (Index thread : threads) {
        position.thread = thread;
        call(&values);
      }
    });
  }

  static StandInKernel entry(const char* name, bool has_barriers) {
    const std::vector<StandInParameter>& parameters = layout<Parameters...>();
    const size_t bytes = parameters.empty() ? 0 : parameters.back().offset + parameters.back().bytes;
    return {name, parameters.data(), static_cast<int>(parameters.size()), bytes, has_barriers ? run<true> : run<false>};
  }
};

}  // namespace lockstep::shim

// Entries of a std::vector<StandInKernel>.
#define KERNEL(name) ::lockstep::shim::Launch<name>::entry(#name, false)
#define KERNEL_WITH_BARRIERS(name) ::lockstep::shim::Launch<name>::entry(#name, true)
