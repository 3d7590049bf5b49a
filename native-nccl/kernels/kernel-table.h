// The kernels of libkernels.so, the CPU build of kernels.cu, as the stand-in driver and the tests launch them.
#pragma once
#include <cstddef>

namespace lockstep {

// One parameter of a kernel: where it lies in the parameter block. A pointer to const is only read through.
struct StandInParameter {
  bool is_pointer, is_const;
  size_t offset, bytes;
};

struct StandInKernel {
  const char* name;
  const StandInParameter* parameters;
  int parameter_count;
  size_t parameter_bytes;  // of the whole block
  // Runs the launch on this thread, to its end. Throws std::logic_error for what would hang or be undefined on a GPU.
  void (*run)(const void* parameters, const unsigned grid[3], const unsigned block[3], size_t shared_bytes);
};

// All kernels; `count` is set to how many.
extern "C" const StandInKernel* standin_kernels(int* count);

}  // namespace lockstep
