// Reduction in the order and with the roundings of a ring.
#pragma once
#include <string>
#include <vector>

namespace stand_in {

// The fold of all inputs over elements [first, first + count), in the order start, start + 1, ... of ranks, written to
// `output` from its beginning. 16-bit floats are rounded after each step.
void fold(const std::vector<const char*>& inputs, size_t first, size_t count, int dtype, int op, size_t start,
          char* output);

// All elements. [Note: ring order] A ring cuts the data into a chunk for each rank; that of rank c is begun by the rank
// after c and ended by c. So chunks differ in the order of their sums, but all ranks get the same bits.
std::string fold_as_ring(const std::vector<const char*>& inputs, size_t count, int dtype, int op);

}  // namespace stand_in
