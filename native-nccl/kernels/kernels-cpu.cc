// The CPU build of kernels.cu: libkernels.so.
#include "cuda-shim.h"

// After the shim, whose macros it is written in.
#include "kernels.cu"

#define ENTRIES_OF_UPDATES(Type)                                                        \
  KERNEL(sgd_##Type##_float32), KERNEL(sgd_##Type##_float16), KERNEL(sgd_##Type##_bfloat16), \
      KERNEL(adam_##Type##_float32), KERNEL(adam_##Type##_float16), KERNEL(adam_##Type##_bfloat16)
#define ENTRIES_OF_ONE_TYPE(Type)                                            \
  KERNEL(scale_##Type), KERNEL(unscale_##Type), KERNEL(add_scaled_##Type),   \
      KERNEL_WITH_BARRIERS(sum_squares_##Type), ENTRIES_OF_UPDATES(Type)

extern "C" __attribute__((visibility("default"))) const lockstep::StandInKernel* lockstep::standin_kernels(int* count) {
  static const std::vector<StandInKernel> table = {
      KERNEL(cast_float32_float16),
      KERNEL(cast_float32_bfloat16),
      KERNEL(cast_float16_float32),
      KERNEL(cast_float16_bfloat16),
      KERNEL(cast_bfloat16_float32),
      KERNEL(cast_bfloat16_float16),
      ENTRIES_OF_ONE_TYPE(float32),
      ENTRIES_OF_ONE_TYPE(float16),
      ENTRIES_OF_ONE_TYPE(bfloat16),
      KERNEL_WITH_BARRIERS(sum_partials),
      KERNEL(fill_16),
      KERNEL(fill_32),
      KERNEL(copy_segments_16),
      KERNEL(copy_segments_32),
  };
  *count = static_cast<int>(table.size());
  return table.data();
}
