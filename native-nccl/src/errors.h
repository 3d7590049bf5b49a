// What the libraries return, as a Status in words.
#pragma once
#include <string>

#include "status.h"
#include "symbols.h"

namespace lockstep {

// 'cuInit returned 100 (CUDA_ERROR_NO_DEVICE)'.
std::string describe_cuda(const CudaFunctions&, const char* call, CUresult result);
Status cuda_status(const char* call, CUresult result);
// `comm` may be null; it must not be one that was destroyed.
Status nccl_status(const char* call, ncclResult_t result, ncclComm_t comm);

// A call on a non-blocking communicator may still be in progress when it returns.
bool is_failure(ncclResult_t result);

// Of these the context does not recover: every later call in the process returns the same.
bool is_sticky(CUresult result);

std::string nccl_version_words(int version);

// The same failure of something larger: its words come first.
Status with_context(const std::string& context, Status status);
Status make_status(Code code, std::string message);

}  // namespace lockstep
