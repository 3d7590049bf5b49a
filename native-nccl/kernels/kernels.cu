// The kernels of the NCCL backend. One text for two compilers: nvcc makes kernels.ptx of it (scripts/ptx.mjs), g++ the
// stand-in's kernels (kernels-cpu.cc). No include: 16-bit floats are converted by integer code, without CUDA's headers.
//
// [Note: same bits] Arithmetic is float32, every operation rounded on its own: nvcc is told not to fuse multiplications
// with additions, and its division and square root are IEEE's. So what the CPU build computes, a GPU computes, bit for
// bit; only the bits of a NaN may differ. These kernels wait for memory, not for arithmetic: nothing is lost.
//
// All kernels take any grid, and any one-dimensional block (the sums: a multiple of 32 threads, at most 1024).

using Count = unsigned long long;

// Element types, named as Lockstep's dtypes. `Bits` is what memory holds.

struct float32 {
  using Bits = float;
  __device__ static float widen(Bits bits) { return bits; }
  __device__ static Bits narrow(float value) { return value; }
};

// As src/core/half.ts: to nearest, ties to even; NaN, infinities, signed zeros and subnormals are kept.
struct float16 {
  using Bits = unsigned short;

  __device__ static float widen(Bits half) {
    const unsigned sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude << 13));
    // The same digits with float32's bias are 2^112 times too small; the product is exact.
    const float value = __uint_as_float(magnitude << 13) * 5192296858534827628530496329220096.0f;
    return __uint_as_float(sign | __float_as_uint(value));
  }

  __device__ static Bits narrow(float value) {
    const unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // A normal float16: rebias the exponent by 112 and round the 13 lost bits, carrying into the exponent.
    const unsigned normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // A subnormal one counts units of 2^-24, to which the addition rounds: they are the last digit of float32 0.5.
    const unsigned subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    const unsigned beyond = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN; 65536 or more, infinity
    const unsigned half = magnitude >= 0x47800000u ? beyond : magnitude >= 0x38800000u ? normal : subnormal;
    return static_cast<Bits>(sign | half);
  }
};

struct bfloat16 {
  using Bits = unsigned short;
  __device__ static float widen(Bits half) { return __uint_as_float(static_cast<unsigned>(half) << 16); }
  __device__ static Bits narrow(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bits>(((bits >> 16) & 0x8000u) | 0x7fc0u);
    return static_cast<Bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

__device__ inline Count first_index() { return static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline Count index_stride() { return static_cast<Count>(gridDim.x) * blockDim.x; }

// Calls `body` for the indices of this thread, in order.
template <class Body>
__device__ inline void for_each(Count count, Body body) {
  for (Count i = first_index(); i < count; i += index_stride()) body(i);
}

// The same, loading for four indices before `body` takes the first: the loads wait for memory together.
template <class Load, class Body>
__device__ inline void for_each_loaded(Count count, Load load, Body body) {
  const Count stride = index_stride();
  Count i = first_index();
  for (; i + 3 * stride < count; i += 4 * stride) {
    const decltype(load(i)) loaded[4] = {load(i), load(i + stride), load(i + 2 * stride), load(i + 3 * stride)};
    for (int k = 0; k < 4; k++) body(i + k * stride, loaded[k]);
  }
  for (; i < count; i += stride) body(i, load(i));
}


template <class From, class To>
__device__ inline void cast(const typename From::Bits* source, typename To::Bits* target, Count count) {
  for_each_loaded(
      count, [=](Count i) { return From::widen(source[i]); },
      [=](Count i, float value) { target[i] = To::narrow(value); });
}

#define CAST(From, To)                                                                                             \
  extern "C" __global__ void cast_##From##_##To(const From::Bits* source, To::Bits* target, Count count) {         \
    cast<From, To>(source, target, count);                                                                         \
  }
CAST(float32, float16)
CAST(float32, bfloat16)
CAST(float16, float32)
CAST(float16, bfloat16)
CAST(bfloat16, float32)
CAST(bfloat16, float16)

template <class Type>
__device__ inline void scale(typename Type::Bits* values, Count count, float factor) {
  for_each_loaded(
      count, [=](Count i) { return Type::widen(values[i]); },
      [=](Count i, float value) { values[i] = Type::narrow(value * factor); });
}

// Source and target may be the same memory. Sets `overflow` to 1 if a result is not finite, and else leaves it alone.
template <class Type>
__device__ inline void unscale(
    const typename Type::Bits* source, float* target, Count count, float factor, int* overflow) {
  bool is_finite = true;
  for_each_loaded(
      count, [=](Count i) { return Type::widen(source[i]); },
      [&](Count i, float value) {
        const float result = value * factor;
        target[i] = result;
        is_finite &= (__float_as_uint(result) & 0x7f800000u) != 0x7f800000u;
      });
  if (!is_finite) *overflow = 1;
}

// target += factor * source. A factor of 1 is an addition.
template <class Type>
__device__ inline void add_scaled(
    typename Type::Bits* target, const typename Type::Bits* source, Count count, float factor) {
  struct Pair {
    typename Type::Bits sum, value;
  };
  for_each_loaded(
      count, [=](Count i) { return Pair{target[i], source[i]}; },
      [=](Count i, Pair pair) { target[i] = Type::narrow(Type::widen(pair.sum) + factor * Type::widen(pair.value)); });
}

// In lane 0.
__device__ inline double warp_sum(double value) {
  for (int delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(0xffffffffu, value, delta);
  return value;
}

// In thread 0: over each warp, then over the warps' sums.
__device__ inline double block_sum(double value) {
  __shared__ double sums[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = warp_sum(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  if (warp == 0) value = warp_sum(lane < blockDim.x / 32 ? sums[lane] : 0.0);
  return value;
}

// The sum of squares of what each block sees. In float64, where a square is exact: it neither overflows nor vanishes.
// The order depends on the count and the size of the launch alone, so equal launches give equal bits.
template <class Type>
__device__ inline void sum_squares(const typename Type::Bits* values, Count count, double* partials) {
  double sum = 0;
  for_each_loaded(
      count, [=](Count i) { return Type::widen(values[i]); },
      [&](Count, float value) { sum += static_cast<double>(value) * value; });
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// By one block.
extern "C" __global__ void sum_partials(const double* partials, Count count, double* total) {
  double sum = 0;
  for_each(count, [&](Count i) { sum += partials[i]; });
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

#define OF_ONE_TYPE(Type)                                                                                          \
  extern "C" __global__ void scale_##Type(Type::Bits* values, Count count, float factor) {                         \
    scale<Type>(values, count, factor);                                                                            \
  }                                                                                                                \
  extern "C" __global__ void unscale_##Type(                                                                       \
      const Type::Bits* source, float* target, Count count, float factor, int* overflow) {                         \
    unscale<Type>(source, target, count, factor, overflow);                                                        \
  }                                                                                                                \
  extern "C" __global__ void add_scaled_##Type(                                                                    \
      Type::Bits* target, const Type::Bits* source, Count count, float factor) {                                   \
    add_scaled<Type>(target, source, count, factor);                                                               \
  }                                                                                                                \
  extern "C" __global__ void sum_squares_##Type(const Type::Bits* values, Count count, double* partials) {         \
    sum_squares<Type>(values, count, partials);                                                                    \
  }
OF_ONE_TYPE(float32)
OF_ONE_TYPE(float16)
OF_ONE_TYPE(bfloat16)

// Copies runs of elements; a block copies one after another, so long runs are cut before. The table holds the first
// elements of all sources, then all lengths, then the first elements of all targets.
template <class Element>
__device__ inline void copy_segments(const Element* source, Element* target, const Count* table, Count segments) {
  for (Count segment = blockIdx.x; segment < segments; segment += gridDim.x) {
    const Element* from = source + table[segment];
    const Count length = table[segments + segment];
    Element* to = target + table[2 * segments + segment];
    for (Count i = threadIdx.x; i < length; i += blockDim.x) to[i] = from[i];
  }
}

#define OF_ONE_SIZE(bits, Element)                                                                                 \
  extern "C" __global__ void fill_##bits(Element* target, Count count, int pattern) {                              \
    for_each(count, [=](Count i) { target[i] = static_cast<Element>(pattern); });                                  \
  }                                                                                                                \
  extern "C" __global__ void copy_segments_##bits(                                                                 \
      const Element* source, Element* target, const Count* table, Count segments) {                                \
    copy_segments(source, target, table, segments);                                                                \
  }
OF_ONE_SIZE(16, unsigned short)
OF_ONE_SIZE(32, unsigned)

// The value to update. Of a 16-bit parameter with a float32 master that is the master's, unless the parameter is not
// what the master rounds to: then somebody changed it, and the master starts anew from there ([Note: master copies] in
// src/optim/master-copy.ts).
template <class Type>
__device__ inline float load_parameter(const typename Type::Bits* parameter, const float* master, Count i) {
  const typename Type::Bits bits = parameter[i];
  const float kept = master ? master[i] : 0;
  return master && Type::narrow(kept) == bits ? kept : Type::widen(bits);
}

template <class Type>
__device__ inline void store_parameter(typename Type::Bits* parameter, float* master, Count i, float value) {
  if (master) master[i] = value;
  parameter[i] = Type::narrow(value);
}

// The optimizers of src/optim/, by the numbers of src/core/flat-update.ts. `master` may be null, and so may `skip`, a
// flag in device memory that makes the launch do nothing.

struct SGDNumbers {
  float gradient_scale, lr, momentum, taken, weight_decay;
  bool is_nesterov;
};

// Without momentum `velocity` is null.
template <class Type, class Gradient>
__device__ inline void sgd(
    typename Type::Bits* parameter, const typename Gradient::Bits* gradient, float* master, float* velocity,
    Count count, const int* skip, SGDNumbers numbers) {
  if (skip && *skip) return;
  for_each(count, [=](Count i) {
    const float slope = Gradient::widen(gradient[i]), speed_before = velocity ? velocity[i] : 0;
    const float value = load_parameter<Type>(parameter, master, i);
    float direction = numbers.gradient_scale * slope + numbers.weight_decay * value;
    if (velocity) {
      const float speed = numbers.momentum * speed_before + numbers.taken * direction;
      velocity[i] = speed;
      direction = numbers.is_nesterov ? direction + numbers.momentum * speed : speed;
    }
    store_parameter<Type>(parameter, master, i, value - numbers.lr * direction);
  });
}

// What `1 - beta` and `1 - keep` are in float64: float32 would lose their digits in the subtraction.
struct AdamNumbers {
  float gradient_scale, beta1, taken1, beta2, taken2, eps, penalty, decay, step_size, root_scale;
};

template <class Type, class Gradient>
__device__ inline void adam(
    typename Type::Bits* parameter, const typename Gradient::Bits* gradient, float* master, float* average,
    float* square_average, Count count, const int* skip, AdamNumbers numbers) {
  if (skip && *skip) return;
  for_each(count, [=](Count i) {
    const float given = Gradient::widen(gradient[i]), m_before = average[i], v_before = square_average[i];
    const float value = load_parameter<Type>(parameter, master, i);
    const float slope = numbers.gradient_scale * given + numbers.penalty * value;
    const float m = numbers.beta1 * m_before + numbers.taken1 * slope;
    const float v = numbers.beta2 * v_before + numbers.taken2 * slope * slope;
    average[i] = m;
    square_average[i] = v;
    const float step = (numbers.step_size * m) / (sqrtf(v) * numbers.root_scale + numbers.eps);
    // This is keep * value - step, for a keep so near 1 that float32 would have lost what it takes away.
    store_parameter<Type>(parameter, master, i, value - (numbers.decay * value + step));
  });
}

#define UPDATES(Type, Gradient)                                                                                    \
  extern "C" __global__ void sgd_##Type##_##Gradient(                                                              \
      Type::Bits* parameter, const Gradient::Bits* gradient, float* master, float* velocity, Count count,          \
      const int* skip, float gradient_scale, float lr, float momentum, float taken, float weight_decay,            \
      int is_nesterov) {                                                                                           \
    sgd<Type, Gradient>(                                                                                           \
        parameter, gradient, master, velocity, count, skip,                                                        \
        {gradient_scale, lr, momentum, taken, weight_decay, is_nesterov != 0});                                    \
  }                                                                                                                \
  extern "C" __global__ void adam_##Type##_##Gradient(                                                             \
      Type::Bits* parameter, const Gradient::Bits* gradient, float* master, float* average,                        \
      float* square_average, Count count, const int* skip, float gradient_scale, float beta1, float taken1,        \
      float beta2, float taken2, float eps, float penalty, float decay, float step_size, float root_scale) {       \
    adam<Type, Gradient>(                                                                                          \
        parameter, gradient, master, average, square_average, count, skip,                                         \
        {gradient_scale, beta1, taken1, beta2, taken2, eps, penalty, decay, step_size, root_scale});               \
  }
#define UPDATES_OF(Type)     \
  UPDATES(Type, float32)     \
  UPDATES(Type, float16)     \
  UPDATES(Type, bfloat16)
UPDATES_OF(float32)
UPDATES_OF(float16)
UPDATES_OF(bfloat16)
