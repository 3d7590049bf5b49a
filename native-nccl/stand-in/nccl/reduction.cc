#include "reduction.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "protocol.h"

namespace stand_in {

static float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

struct Bfloat16 {
  uint16_t bits;
  using Computed = float;
  operator float() const { return from_bits(uint32_t{bits} << 16); }
  explicit Bfloat16(float value) {
    const uint32_t wide = to_bits(value);
    const bool is_nan = (wide & 0x7fffffff) > 0x7f800000;
    bits = static_cast<uint16_t>(is_nan ? wide >> 16 | 0x40 : (wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  uint16_t bits;
  operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    // The smallest denormal is 2^-24.
    if (!exponent) return std::copysign(std::ldexp(static_cast<float>(mantissa), -24), from_bits(sign | 0x3f800000));
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
    return from_bits(sign | wide_exponent << 23 | mantissa << 13);
  }
  explicit Float16(float value) {
    const uint32_t wide = to_bits(value), magnitude = wide & 0x7fffffff;
    const uint16_t sign = static_cast<uint16_t>(wide >> 16 & 0x8000);
    uint32_t half;
    if (magnitude > 0x7f800000) half = 0x7e00;
    else if (magnitude >= 0x477ff000) half = 0x7c00;  // 65520 and more round to infinity
    else if (magnitude < 0x38800000) {
      // Denormals: count 2^-24, to nearest even.
      half = static_cast<uint32_t>(std::nearbyint(std::ldexp(from_bits(magnitude), 24)));
    } else half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    bits = static_cast<uint16_t>(sign | half);
  }
};

// What one step of the fold makes of two elements; NaN is lost in min and max, as in NCCL.
template <class T>
static T combine(T a, T b, int op) {
  if constexpr (std::is_integral_v<T>) {
    // Unsigned, since overflow has to wrap.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    switch (op) {
      case ncclProd: return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
      case ncclMax: return std::max(a, b);
      case ncclMin: return std::min(a, b);
      default: return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    }
  } else {
    switch (op) {
      case ncclProd: return a * b;
      case ncclMax: return std::fmax(a, b);
      case ncclMin: return std::fmin(a, b);
      default: return a + b;
    }
  }
}

// What is taken of each input before it is summed. [Note: average of floats] As NCCL's PreMulSum: 1/ranks is rounded to the
// type, each input is multiplied by it and rounded, and then all are summed: nothing overflows that the average would not.
template <class Stored, class Computed>
struct Scaled {
  const bool is_average;
  const Stored factor;
  Scaled(int op, size_t ranks)
      : is_average(op == ncclAvg), factor(static_cast<Stored>(is_average ? Computed(1) / Computed(ranks) : Computed(1))) {}
  Stored operator()(Stored input) const {
    if (!is_average) return input;
    return static_cast<Stored>(static_cast<Computed>(input) * static_cast<Computed>(factor));
  }
};

template <class Stored, class Computed = Stored>
static void fold_typed(const std::vector<const char*>& inputs, size_t first, size_t count, int op, size_t start,
                       char* output) {
  const size_t ranks = inputs.size();
  const Scaled<Stored, Computed> scaled(op, ranks);
  const auto of_rank = [&](size_t rank) { return reinterpret_cast<const Stored*>(inputs[rank % ranks]) + first; };
  Stored* result = reinterpret_cast<Stored*>(output);
  for (size_t i = 0; i < count; i++) result[i] = scaled(of_rank(start)[i]);
  for (size_t step = 1; step < ranks; step++) {
    const Stored* input = of_rank(start + step);
    for (size_t i = 0; i < count; i++) {
      const Computed next = static_cast<Computed>(scaled(input[i]));
      result[i] = static_cast<Stored>(combine<Computed>(static_cast<Computed>(result[i]), next, op));
    }
  }
}

void fold(const std::vector<const char*>& inputs, size_t first, size_t count, int dtype, int op, size_t start,
          char* output) {
  switch (dtype) {
    case ncclInt8: return fold_typed<int8_t>(inputs, first, count, op, start, output);
    case ncclUint8: return fold_typed<uint8_t>(inputs, first, count, op, start, output);
    case ncclInt32: return fold_typed<int32_t>(inputs, first, count, op, start, output);
    case ncclUint32: return fold_typed<uint32_t>(inputs, first, count, op, start, output);
    case ncclInt64: return fold_typed<int64_t>(inputs, first, count, op, start, output);
    case ncclUint64: return fold_typed<uint64_t>(inputs, first, count, op, start, output);
    case ncclFloat32: return fold_typed<float>(inputs, first, count, op, start, output);
    case ncclFloat64: return fold_typed<double>(inputs, first, count, op, start, output);
    case ncclFloat16: return fold_typed<Float16, float>(inputs, first, count, op, start, output);
    case ncclBfloat16: return fold_typed<Bfloat16, float>(inputs, first, count, op, start, output);
  }
}

std::string fold_as_ring(const std::vector<const char*>& inputs, size_t count, int dtype, int op) {
  const size_t ranks = inputs.size(), chunk = (count + ranks - 1) / ranks, bytes = size_of(dtype);
  std::string output(count * bytes, '\0');
  for (size_t rank = 0; rank * chunk < count; rank++) {
    const size_t first = rank * chunk;
    fold(inputs, first, std::min(chunk, count - first), dtype, op, rank + 1, &output[first * bytes]);
  }
  return output;
}

}  // namespace stand_in
