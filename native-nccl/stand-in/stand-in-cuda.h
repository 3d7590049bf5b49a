// What the stand-in driver exports beyond the ABI of CUDA: for the stand-in of NCCL, the allocator and tests.
#pragma once
#include "../src/abi.h"

extern "C" {

struct StandInRange {
  CUdeviceptr pointer;
  size_t bytes;
  int is_written;
};

// Run `run(data, host)` in the order of the stream; `host[i]` is the i-th range as the CPU sees it. `drop(data)` is
// called exactly once, on success and on failure. `run` returns a CUresult; anything but 0 is sticky for the device.
CUresult standin_cuda_enqueue(CUstream stream, const char* name, const StandInRange* ranges, int count,
                              int (*run)(void* data, void** host), void* data, void (*drop)(void* data));
// Of the calling thread's context; -1: none.
int standin_cuda_current_device();
// -1: no such stream.
int standin_cuda_stream_device(CUstream stream);
// Wait for all work of the device, as freeing memory does.
void standin_cuda_wait_device(int device);
// Accesses found without an order between them, since the process began.
int standin_cuda_race_count();
// All reports of this process, races included.
int standin_cuda_report_count();
// An allocator says that `bytes` from `pointer` on, inside one allocation, are a block of their own from now on
// (is_live 1), or not any more (0). Work enqueued later must lie inside one live block.
void standin_cuda_note_block(CUdeviceptr pointer, size_t bytes, int is_live);

}  // extern "C"
