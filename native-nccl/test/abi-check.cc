// Compares src/abi.h and src/symbols.h with the vendors' headers. To be compiled where those are found, never linked:
//
//     g++ -std=c++17 -fsyntax-only -I <cuda>/include -I <nccl>/include test/abi-check.cc
//
// nccl.h may be absent; then only the driver's half is compared.
#include <cstddef>
#include <cstdint>

// Ours first, with all of its names in a namespace; then the vendors', as they come. Both have the same types by name,
// so what is compared is size, layout and value.
namespace ours {
#include "../src/abi.h"
#include "../src/symbols.h"
}  // namespace ours

// Macros of ours would replace the vendors'.
constexpr void* our_launch_end = CU_LAUNCH_PARAM_END;
#undef CU_LAUNCH_PARAM_END
#undef CU_LAUNCH_PARAM_BUFFER_POINTER
#undef CU_LAUNCH_PARAM_BUFFER_SIZE

#include <cuda.h>

#define SAME_VALUE(name) static_assert(static_cast<long long>(::name) == static_cast<long long>(ours::name), #name)
#define SAME_SIZE(name) \
  static_assert(sizeof(::name) == sizeof(ours::name) && alignof(::name) == alignof(ours::name), #name)

SAME_VALUE(CUDA_SUCCESS);
SAME_VALUE(CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(CUDA_ERROR_INVALID_IMAGE);
SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(CUDA_ERROR_INVALID_PTX);
SAME_VALUE(CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(CUDA_ERROR_NOT_FOUND);
SAME_VALUE(CUDA_ERROR_NOT_READY);
SAME_VALUE(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(CUDA_ERROR_UNKNOWN);
SAME_VALUE(CU_STREAM_NON_BLOCKING);
SAME_VALUE(CU_EVENT_DISABLE_TIMING);
SAME_VALUE(CU_JIT_ERROR_LOG_BUFFER);
SAME_VALUE(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_SIZE(CUdevice);
SAME_SIZE(CUdeviceptr);
SAME_SIZE(CUuuid);
SAME_SIZE(CUresult);
SAME_SIZE(CUstream);

// The sticky ones of errors.cc that abi.h has no name for.
static_assert(CUDA_ERROR_ECC_UNCORRECTABLE == 214 && CUDA_ERROR_NVLINK_UNCORRECTABLE == 220, "");
static_assert(CUDA_ERROR_LAUNCH_TIMEOUT == 702 && CUDA_ERROR_CONTEXT_IS_DESTROYED == 709, "");
static_assert(CUDA_ERROR_ASSERT == 710 && CUDA_ERROR_HARDWARE_STACK_ERROR == 714, "");
static_assert(CUDA_ERROR_ILLEGAL_INSTRUCTION == 715 && CUDA_ERROR_MISALIGNED_ADDRESS == 716, "");
static_assert(CUDA_ERROR_INVALID_ADDRESS_SPACE == 717 && CUDA_ERROR_INVALID_PC == 718, "");
static_assert(CUDA_ERROR_MPS_CLIENT_TERMINATED == 810, "");
#if CUDA_VERSION >= 13000
static_assert(CUDA_ERROR_CONTAINED == 226 && CUDA_ERROR_TENSOR_MEMORY_LEAK == 721, "");
static_assert(CUDA_ERROR_EXTERNAL_DEVICE == 911, "");
#endif

void launch_macros() {
  void* end = CU_LAUNCH_PARAM_END;
  (void)(end == our_launch_end);
}

// A function of ours takes as many arguments as the vendor's, each of the same size. The plain names of cuda.h are
// macros for the versioned ones, so the versioned names are what this file sees declared.
template <class Function>
struct Shape;
template <class Result, class... Arguments>
struct Shape<Result (*)(Arguments...)> {
  template <class OtherResult, class... Others>
  static constexpr bool compare(OtherResult (*)(Others...)) {
    if constexpr (sizeof...(Others) != sizeof...(Arguments)) return false;
    else return sizeof(OtherResult) == sizeof(Result) && ((sizeof(Others) == sizeof(Arguments)) && ...);
  }
};

#define SAME_SHAPE(Table, name, parameters) \
  static_assert(Shape<decltype(ours::lockstep::Table::name)>::compare(static_cast<decltype(&::name)>(nullptr)), #name);
#define SAME_CUDA(name, parameters) SAME_SHAPE(CudaFunctions, name, parameters)
LOCKSTEP_CUDA_FUNCTIONS(SAME_CUDA)

#if __has_include(<nccl.h>)
#include <nccl.h>

SAME_VALUE(ncclSuccess);
SAME_VALUE(ncclUnhandledCudaError);
SAME_VALUE(ncclSystemError);
SAME_VALUE(ncclInternalError);
SAME_VALUE(ncclInvalidArgument);
SAME_VALUE(ncclInvalidUsage);
SAME_VALUE(ncclRemoteError);
SAME_VALUE(ncclInProgress);
#if NCCL_VERSION_CODE >= 23000
SAME_VALUE(ncclTimeout);
#endif
SAME_VALUE(ncclSum);
SAME_VALUE(ncclProd);
SAME_VALUE(ncclMax);
SAME_VALUE(ncclMin);
SAME_VALUE(ncclAvg);
SAME_VALUE(ncclInt8);
SAME_VALUE(ncclUint8);
SAME_VALUE(ncclInt32);
SAME_VALUE(ncclUint32);
SAME_VALUE(ncclInt64);
SAME_VALUE(ncclUint64);
SAME_VALUE(ncclFloat16);
SAME_VALUE(ncclFloat32);
SAME_VALUE(ncclFloat64);
SAME_VALUE(ncclBfloat16);
SAME_SIZE(ncclUniqueId);

#define SAME_PLACE(field) static_assert(offsetof(::ncclConfig_t, field) == offsetof(ours::ncclConfig218, field), #field)
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
SAME_PLACE(cgaClusterSize);
SAME_PLACE(minCTAs);
SAME_PLACE(maxCTAs);
SAME_PLACE(netName);
SAME_PLACE(splitShare);
static_assert(sizeof(::ncclConfig_t) >= sizeof(ours::ncclConfig218), "later layouts begin with this one");
static_assert(NCCL_CONFIG_UNDEF_INT == ours::NCCL_CONFIG_UNDEFINED, "");
static_assert(NCCL_VERSION(2, 24, 3) == ours::NCCL_OLDEST, "");
static_assert(NCCL_SPLIT_NOCOLOR == -1, "");

#define SAME_NCCL(name, parameters) SAME_SHAPE(NcclFunctions, name, parameters)
LOCKSTEP_NCCL_FUNCTIONS(SAME_NCCL)
#endif
