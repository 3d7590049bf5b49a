#include "errors.h"

#include "library.h"

namespace lockstep {

std::string describe_cuda(const CudaFunctions& functions, const char* call, CUresult result) {
  const char* name = nullptr;
  std::string text = std::string(call) + " returned " + std::to_string(result);
  if (functions.cuGetErrorName(result, &name) == CUDA_SUCCESS && name) text += std::string(" (") + name + ")";
  return text;
}

Status cuda_status(const char* call, CUresult result) {
  Status status = make_status(Code::Cuda, describe_cuda(cuda(), call, result));
  status.call = call;
  status.result = result;
  status.is_device_lost = is_sticky(result);
  if (status.is_device_lost) status.message += ": the device is lost to this process; restart it from a checkpoint";
  return status;
}

Status nccl_status(const char* call, ncclResult_t result, ncclComm_t comm) {
  Status status = make_status(Code::Nccl, std::string(call) + " returned " + std::to_string(result));
  status.call = call;
  status.result = result;
  if (const char* text = nccl().ncclGetErrorString(result)) status.message += std::string(" (") + text + ")";
  const char* detail = nccl().ncclGetLastError(comm);
  if (detail && *detail) {
    status.detail = detail;
    status.message += std::string(": ") + detail;
  }
  return status;
}

bool is_failure(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case 214:  // ECC uncorrectable
    case 220:  // NVLink uncorrectable
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case 226:  // contained by the device
    case 702:  // launch timed out
    case 709:  // context destroyed
    case 710:  // assertion in a kernel
    case 714:  // hardware stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721:  // tensor memory leaked
    case 810:  // client of MPS terminated
    case 911:  // external device
      return true;
    default:
      return false;
  }
}

// The macro of nccl.h since 2.9.
std::string nccl_version_words(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status with_context(const std::string& context, Status status) {
  status.message = context + ": " + status.message;
  return status;
}

Status make_status(Code code, std::string message) {
  Status status;
  status.code = code;
  status.message = std::move(message);
  return status;
}

}  // namespace lockstep
