// The functions that the addon takes from the driver and from NCCL, each in one list: name and parameters.
#pragma once
#include "abi.h"

// Versioned names are the ABI: the headers of CUDA define the plain names to them. All are there from 11.4 on.
#define LOCKSTEP_CUDA_FUNCTIONS(X)                                                                                   \
  X(cuInit, (unsigned flags))                                                                                        \
  X(cuDriverGetVersion, (int* version))                                                                              \
  X(cuGetErrorName, (CUresult result, const char** name))                                                            \
  X(cuDeviceGetCount, (int* count))                                                                                  \
  X(cuDeviceGet, (CUdevice * device, int index))                                                                     \
  X(cuDeviceGetName, (char* name, int bytes, CUdevice device))                                                       \
  X(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                                            \
  X(cuDeviceGetPCIBusId, (char* id, int bytes, CUdevice device))                                                     \
  X(cuDeviceTotalMem_v2, (size_t* bytes, CUdevice device))                                                           \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                              \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                                 \
  X(cuCtxSetCurrent, (CUcontext context))                                                                            \
  X(cuMemGetInfo_v2, (size_t* free_bytes, size_t* total_bytes))                                                      \
  X(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))                                                            \
  X(cuMemFree_v2, (CUdeviceptr pointer))                                                                             \
  X(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                                                  \
  X(cuMemFreeHost, (void* pointer))                                                                                  \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr target, const void* source, size_t bytes, CUstream stream))                   \
  X(cuMemcpyDtoHAsync_v2, (void* target, CUdeviceptr source, size_t bytes, CUstream stream))                         \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream))                   \
  X(cuStreamCreate, (CUstream * stream, unsigned flags))                                                             \
  X(cuStreamDestroy_v2, (CUstream stream))                                                                           \
  X(cuStreamQuery, (CUstream stream))                                                                                \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                             \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                                                \
  X(cuEventDestroy_v2, (CUevent event))                                                                              \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                                 \
  X(cuEventQuery, (CUevent event))                                                                                   \
  X(cuModuleLoadDataEx,                                                                                              \
    (CUmodule * module, const void* image, unsigned count, int* options, void** values))                             \
  X(cuModuleUnload, (CUmodule module))                                                                               \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                                 \
  X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,  \
                     void** extra))

#define LOCKSTEP_NCCL_FUNCTIONS(X)                                                                                   \
  X(ncclGetVersion, (int* version))                                                                                  \
  X(ncclGetUniqueId, (ncclUniqueId * id))                                                                            \
  X(ncclCommInitRankConfig, (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig218* config))         \
  X(ncclCommSplit, (ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig218* config))                \
  X(ncclCommFinalize, (ncclComm_t comm))                                                                             \
  X(ncclCommDestroy, (ncclComm_t comm))                                                                              \
  X(ncclCommAbort, (ncclComm_t comm))                                                                                \
  X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error))                                                   \
  X(ncclCommCount, (ncclComm_t comm, int* count))                                                                    \
  X(ncclCommUserRank, (ncclComm_t comm, int* rank))                                                                  \
  X(ncclGroupStart, ())                                                                                              \
  X(ncclGroupEnd, ())                                                                                                \
  X(ncclAllReduce, (const void* send, void* recv, size_t count, int dtype, int op, ncclComm_t comm, CUstream stream))\
  X(ncclBroadcast,                                                                                                   \
    (const void* send, void* recv, size_t count, int dtype, int root, ncclComm_t comm, CUstream stream))             \
  X(ncclReduce, (const void* send, void* recv, size_t count, int dtype, int op, int root, ncclComm_t comm,           \
                 CUstream stream))                                                                                   \
  X(ncclAllGather, (const void* send, void* recv, size_t count, int dtype, ncclComm_t comm, CUstream stream))        \
  X(ncclReduceScatter,                                                                                               \
    (const void* send, void* recv, size_t count, int dtype, int op, ncclComm_t comm, CUstream stream))               \
  X(ncclSend, (const void* send, size_t count, int dtype, int peer, ncclComm_t comm, CUstream stream))               \
  X(ncclRecv, (void* recv, size_t count, int dtype, int peer, ncclComm_t comm, CUstream stream))

namespace lockstep {

#define LOCKSTEP_MEMBER(name, parameters) CUresult(*name) parameters = nullptr;
struct CudaFunctions {
  LOCKSTEP_CUDA_FUNCTIONS(LOCKSTEP_MEMBER)
  // Optional. Only the tests' stand-in of the driver has it; told of every block, it sees use after release.
  void (*standin_cuda_note_block)(CUdeviceptr pointer, size_t bytes, int is_live) = nullptr;
};
#undef LOCKSTEP_MEMBER

#define LOCKSTEP_MEMBER(name, parameters) ncclResult_t(*name) parameters = nullptr;
struct NcclFunctions {
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_MEMBER)
  const char* (*ncclGetErrorString)(ncclResult_t result) = nullptr;
  const char* (*ncclGetLastError)(ncclComm_t comm) = nullptr;
};
#undef LOCKSTEP_MEMBER

}  // namespace lockstep
