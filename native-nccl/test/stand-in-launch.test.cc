// Modules and kernels of the stand-in driver.
#include <cstring>

#include "stand-in-world.h"

using namespace world;

static const char Ptx[] =
    ".version 7.0\n.target sm_75\n.visible .entry fill_32(\n.visible .entry cast_float32_bfloat16(\n"
    ".visible .entry not_there(\n";

static CUfunction kernel(const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(cuModuleLoadData(&module, Ptx) == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
  return function;
}

static CUresult fill(CUfunction function, CUdeviceptr target, unsigned long long count, int pattern, CUstream stream) {
  void* parameters[] = {&target, &count, &pattern};
  return cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

static CUresult cast(CUfunction function, CUdeviceptr source, CUdeviceptr target, unsigned long long count,
                     CUstream stream) {
  void* parameters[] = {&source, &target, &count};
  return cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

TEST("a module has the kernels that its text names, and a newer text than the driver is refused") {
  in_process({}, [] {
    Device device;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK(cuModuleLoadData(&module, "no ptx") == CUDA_ERROR_INVALID_IMAGE);
    CHECK(cuModuleLoadData(&module, Ptx) == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&function, module, "fill_32") == CUDA_SUCCESS);
    // In the text, not in libkernels.so; and the other way round.
    CHECK(cuModuleGetFunction(&function, module, "not_there") == CUDA_ERROR_NOT_FOUND);
    CHECK(cuModuleGetFunction(&function, module, "fill_16") == CUDA_ERROR_NOT_FOUND);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&function, module, "fill_32") == CUDA_ERROR_INVALID_HANDLE);
    setenv("STANDIN_CUDA_DRIVER_VERSION", "10020", 1);
    CHECK(cuModuleLoadData(&module, Ptx) == 222);
  });
}

TEST("a kernel computes, with either form of parameters, and one block of the wrong size is refused") {
  in_process({}, [] {
    Device device;
    CUfunction function = kernel("fill_32");
    CUdeviceptr target = device.allocate(400);
    CHECK(fill(function, target, 100, 7, device.stream) == CUDA_SUCCESS);
    CHECK(device.download<int>(target, 100) == std::vector<int>(100, 7));
    struct {
      CUdeviceptr target;
      unsigned long long count;
      int pattern;
    } block{target, 100, 9};
    size_t bytes = 20;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, device.stream, nullptr, extra) == CUDA_SUCCESS);
    CHECK(device.download<int>(target, 100) == std::vector<int>(100, 9));
    CHECK(standin_cuda_report_count() == 0);
    bytes = 16;
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, device.stream, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
    CHECK(standin_cuda_report_count() == 1);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, device.stream, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, device.stream, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
  });
}

TEST("a kernel races by its pointers: those to const are reads, the others writes") {
  for (bool writes : {false, true}) {
    in_process({}, [&] {
      Device device;
      CUstream other = device.new_stream();
      CUfunction function = kernel("cast_float32_bfloat16");
      CUdeviceptr source = device.upload<float>({1, 2, 3, 4}), target = device.allocate(8), copy = device.allocate(16);
      cast(function, source, target, 4, device.stream);
      if (writes) cuMemcpyDtoDAsync_v2(copy, target, 8, other);
      else cuMemcpyDtoDAsync_v2(copy, source, 16, other);
      CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
      CHECK(standin_cuda_race_count() == (writes ? 1 : 0));
    });
  }
}

TEST("a kernel is taken to touch the rest of its pointer's block, and no other block") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUfunction function = kernel("fill_32");
    CUdeviceptr slab = device.allocate(2048);
    standin_cuda_note_block(slab, 512, 1);
    standin_cuda_note_block(slab + 512, 512, 1);
    CHECK(fill(function, slab + 256, 4, 1, device.stream) == CUDA_SUCCESS);
    cuMemsetD8Async(slab, 0, 256, other);
    cuMemsetD8Async(slab + 512, 0, 512, other);
    CHECK(standin_cuda_race_count() == 0);
    cuMemsetD8Async(slab + 508, 0, 4, other);
    CHECK(standin_cuda_race_count() == 1);
  });
}

TEST("a kernel on a freed pointer or a released block fails") {
  Reports reports;
  in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [] {
    Device device;
    CUfunction function = kernel("fill_32");
    CUdeviceptr slab = device.allocate(2048);
    standin_cuda_note_block(slab, 512, 1);
    standin_cuda_note_block(slab, 512, 0);
    CHECK(fill(function, slab, 4, 1, device.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  CHECK(reports.mention("USE-AFTER-FREE: fill_32 writes"));
  in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [] {
    Device device;
    CUfunction function = kernel("fill_32");
    CUdeviceptr pointer = device.allocate(64);
    cuMemFree_v2(pointer);
    CHECK(fill(function, pointer, 4, 1, device.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  CHECK(reports.mention("USE-AFTER-FREE: fill_32 touches"));
}
