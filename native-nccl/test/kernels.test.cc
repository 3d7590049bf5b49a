// The CPU shim of kernels: threads, barriers, shuffles, and what it must find. Then the sums of libkernels.so.
#include "../kernels/cuda-shim.h"

#include <string>
#include <vector>

#include "check.h"

using lockstep::StandInKernel;

namespace {

template <class... Values>
void launch(const StandInKernel& kernel, unsigned grid, unsigned block, Values... values) {
  std::vector<char> parameters(kernel.parameter_bytes);
  int next = 0;
  [[maybe_unused]] const auto put = [&](const void* value, size_t bytes) {
    CHECK(next < kernel.parameter_count && kernel.parameters[next].bytes == bytes);
    std::memcpy(parameters.data() + kernel.parameters[next++].offset, value, bytes);
  };
  (put(&values, sizeof values), ...);
  CHECK(next == kernel.parameter_count);
  const unsigned grid_size[3] = {grid, 1, 1}, block_size[3] = {block, 1, 1};
  kernel.run(parameters.data(), grid_size, block_size, 0);
}

// What the launch was refused for; empty: it was not.
template <class... Values>
std::string fault_of(const StandInKernel& kernel, unsigned block, Values... values) {
  try {
    launch(kernel, 1, block, values...);
  } catch (const std::logic_error& fault) {
    return fault.what();
  }
  return "";
}

bool mentions(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

// Each thread gives `first` plus its number to the one opposite, by shared memory.
void exchange(int* output, int first, int has_barrier) {
  __shared__ int numbers[1024];
  numbers[threadIdx.x] = first + static_cast<int>(threadIdx.x);
  if (has_barrier) __syncthreads();
  output[threadIdx.x] = numbers[blockDim.x - 1 - threadIdx.x];
}

void shuffles(int* down, double* exchanged) {
  const int mine = static_cast<int>(threadIdx.x);
  int value = mine;
  // More than two in a row: the slots of a shuffle are used again.
  for (int i = 0; i < 3; i++) value = __shfl_down_sync(0xffffffffu, value, 1);
  down[mine] = value;
  exchanged[mine] = __shfl_xor_sync(0xffffffffu, mine + 0.5, 5);
}

void half_reaches_barrier() {
  if (threadIdx.x % 2) __syncthreads();
}

void barriers_at_different_places() {
  if (threadIdx.x % 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

void half_reaches_shuffle(int* output) {
  if (threadIdx.x % 2) output[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1, 1);
}

void shuffle_by_some_lanes(int* output) { output[threadIdx.x] = __shfl_down_sync(0x0000ffffu, 1, 1); }

void shuffle_next(int* output) { output[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1, 1); }

void places(unsigned* counts) {
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  counts[block * threads + thread]++;
}

void indices(unsigned* narrow, unsigned long long* wide, unsigned long long first) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  narrow[i] = i;
  wide[i] = first + static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

void mixed(char, const float*, int, double*, short) {}

const StandInKernel* kernel_named(const char* name) {
  int count = 0;
  const StandInKernel* kernels = lockstep::standin_kernels(&count);
  for (int i = 0; i < count; i++) {
    if (!std::strcmp(kernels[i].name, name)) return &kernels[i];
  }
  return nullptr;
}

double sum_of_squares(const std::vector<float>& values, unsigned grid, unsigned block) {
  std::vector<double> partials(grid, -1);
  double total = -1;
  launch(*kernel_named("sum_squares_float32"), grid, block, values.data(), uint64_t{values.size()}, partials.data());
  launch(*kernel_named("sum_partials"), 1, block, partials.data(), uint64_t{grid}, &total);
  return total;
}

}  // namespace

TEST("every thread of every block runs once") {
  for (const StandInKernel& kernel : {KERNEL(places), KERNEL_WITH_BARRIERS(places)}) {
    std::vector<unsigned> counts(2 * 3 * 2 * 4 * 3 * 5);
    unsigned* pointer = counts.data();
    const unsigned grid[3] = {2, 3, 2}, block[3] = {4, 3, 5};
    kernel.run(&pointer, grid, block, 0);
    for (unsigned count : counts) CHECK(count == 1);
  }
}

TEST("32-bit and 64-bit indices of threads") {
  std::vector<unsigned> narrow(3 * 40);
  std::vector<unsigned long long> wide(3 * 40);
  const unsigned long long first = 1ull << 40;
  launch(KERNEL(indices), 3, 40, narrow.data(), wide.data(), first);
  for (unsigned i = 0; i < narrow.size(); i++) CHECK(narrow[i] == i && wide[i] == first + i);
}

TEST("parameters lie at multiples of their alignment, and say what they are") {
  const StandInKernel kernel = KERNEL(mixed);
  const size_t offsets[] = {0, 8, 16, 24, 32};
  CHECK(kernel.parameter_count == 5 && kernel.parameter_bytes == 34);
  for (int i = 0; i < 5; i++) {
    CHECK(kernel.parameters[i].offset == offsets[i]);
    CHECK(kernel.parameters[i].is_pointer == (i == 1 || i == 3));
    CHECK(kernel.parameters[i].is_const == (i == 1));
  }
}

TEST("a barrier shows each thread what all wrote before it, and a missing one is seen") {
  for (unsigned block : {1u, 31u, 96u, 1024u}) {
    std::vector<int> with(block), without(block);
    // Other numbers each time, as shared memory keeps those of the launch before.
    launch(KERNEL_WITH_BARRIERS(exchange), 1, block, with.data(), 1000, 1);
    launch(KERNEL_WITH_BARRIERS(exchange), 1, block, without.data(), 5000, 0);
    unsigned missed = 0;
    for (unsigned i = 0; i < block; i++) {
      CHECK(with[i] == static_cast<int>(1000 + block - 1 - i));
      if (without[i] != with[i] + 4000) missed++;
    }
    CHECK((missed > 0) == (block > 1));
  }
}

TEST("a shuffle reads the other lane of the same warp") {
  std::vector<int> down(96);
  std::vector<double> exchanged(96);
  launch(KERNEL_WITH_BARRIERS(shuffles), 1, 96, down.data(), exchanged.data());
  for (int i = 0; i < 96; i++) {
    CHECK(down[i] == i + std::min(3, 31 - i % 32));
    CHECK(exchanged[i] == (i ^ 5) + 0.5);
  }
}

TEST("a barrier or shuffle that not all threads reach is found") {
  std::vector<int> output(64);
  int* pointer = output.data();
  CHECK(mentions(fault_of(KERNEL_WITH_BARRIERS(half_reaches_barrier), 64), "barrier that not all threads"));
  CHECK(mentions(fault_of(KERNEL_WITH_BARRIERS(barriers_at_different_places), 64), "barrier that not all threads"));
  CHECK(mentions(fault_of(KERNEL_WITH_BARRIERS(half_reaches_shuffle), 64, pointer), "shuffle that not all lanes"));
  CHECK(mentions(fault_of(KERNEL_WITH_BARRIERS(shuffle_by_some_lanes), 64, pointer), "mask is not all lanes"));
  CHECK(mentions(fault_of(KERNEL_WITH_BARRIERS(shuffle_next), 40, pointer), "lane that is not there"));
  CHECK(fault_of(KERNEL_WITH_BARRIERS(shuffle_next), 64, pointer).empty());
}

TEST("a kernel with barriers that is entered as one without is found") {
  std::vector<int> output(64);
  CHECK(mentions(fault_of(KERNEL(exchange), 64, output.data(), 0, 1), "entered as one without barriers"));
  CHECK(mentions(fault_of(KERNEL(shuffle_next), 64, output.data()), "entered as one without barriers"));
}

TEST("launches are right after one that failed") {
  std::vector<int> output(64);
  CHECK(!fault_of(KERNEL_WITH_BARRIERS(half_reaches_barrier), 64).empty());
  launch(KERNEL_WITH_BARRIERS(exchange), 1, 64, output.data(), 0, 1);
  for (int i = 0; i < 64; i++) CHECK(output[i] == 63 - i);
}

TEST("the sum of squares is exact for whole numbers, in any block and grid") {
  for (size_t count : {0u, 1u, 31u, 257u, 1009u}) {
    std::vector<float> values(count);
    double expected = 0;
    for (size_t i = 0; i < count; i++) {
      values[i] = static_cast<float>(static_cast<int>(i % 97) - 48);
      expected += static_cast<double>(values[i]) * values[i];
    }
    for (unsigned block : {32u, 96u, 256u, 1024u}) {
      for (unsigned grid : {1u, 3u}) CHECK(sum_of_squares(values, grid, block) == expected);
    }
  }
}

TEST("squares outside float32's range are summed") {
  CHECK(sum_of_squares({1e30f, 1e30f}, 2, 32) == 2.0 * 1e30f * 1e30f);
  CHECK(sum_of_squares({1e-40f}, 1, 32) == static_cast<double>(1e-40f) * 1e-40f);
  CHECK(std::isnan(sum_of_squares({1, NAN}, 1, 32)));
  CHECK(std::isinf(sum_of_squares({1, -INFINITY}, 1, 32)));
}

TEST("equal launches give equal bits") {
  std::vector<float> values(5000);
  for (size_t i = 0; i < values.size(); i++) values[i] = std::sin(static_cast<float>(i));
  const double first = sum_of_squares(values, 5, 64);
  for (int i = 0; i < 3; i++) CHECK(sum_of_squares(values, 5, 64) == first);
}
