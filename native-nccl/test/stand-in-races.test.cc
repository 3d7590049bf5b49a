// The race detector, and the blocks of an allocator.
#include <cstring>

#include "stand-in-world.h"

using namespace world;

// Two writes on two streams, with what comes between them; how many races are found.
static void two_writes(int races, const std::function<void(Device&, CUstream other)>& between) {
  in_process({}, [&] {
    Device device;
    CUstream other = device.new_stream();
    CUdeviceptr pointer = device.allocate(64);
    cuMemsetD8Async(pointer, 1, 64, device.stream);
    between(device, other);
    cuMemsetD8Async(pointer + 32, 2, 8, other);
    cuCtxSynchronize();
    CHECK(standin_cuda_race_count() == races);
  });
}

TEST("two writes on two streams without a wait are a race, even when the first has long finished") {
  two_writes(1, [](Device&, CUstream) { sleep_ms(20); });
}

TEST("an event between them makes an order") {
  two_writes(0, [](Device& device, CUstream other) {
    CUevent event = device.new_event();
    cuEventRecord(event, device.stream);
    cuStreamWaitEvent(other, event, 0);
  });
}

TEST("an event that was recorded before the first write makes none") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUevent event = device.new_event();
    CUdeviceptr pointer = device.allocate(64);
    cuEventRecord(event, device.stream);
    cuMemsetD8Async(pointer, 1, 64, device.stream);
    cuStreamWaitEvent(other, event, 0);
    cuMemsetD8Async(pointer, 2, 64, other);
    CHECK(standin_cuda_race_count() == 1);
  });
}

TEST("synchronising makes an order, and so does finding the stream or an event done") {
  two_writes(0, [](Device& device, CUstream) { cuStreamSynchronize(device.stream); });
  two_writes(0, [](Device&, CUstream) { cuCtxSynchronize(); });
  two_writes(0, [](Device& device, CUstream) {
    while (cuStreamQuery(device.stream)) sleep_ms(1);
  });
  two_writes(0, [](Device& device, CUstream) {
    CUevent event = device.new_event();
    cuEventRecord(event, device.stream);
    while (cuEventQuery(event)) sleep_ms(1);
  });
}

TEST("synchronising another stream makes no order") {
  two_writes(1, [](Device&, CUstream other) { cuStreamSynchronize(other); });
}

TEST("reads do not race with reads, but with writes") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream(), third = device.new_stream();
    CUdeviceptr pointer = device.allocate(64), copies = device.allocate(64);
    cuMemsetD8Async(pointer, 1, 64, device.stream);
    cuStreamSynchronize(device.stream);
    cuMemcpyDtoDAsync_v2(copies, pointer, 16, device.stream);
    cuMemcpyDtoDAsync_v2(copies + 16, pointer, 16, other);
    CHECK(standin_cuda_race_count() == 0);
    cuMemsetD8Async(pointer, 2, 64, third);
    // With both reads.
    CHECK(standin_cuda_race_count() == 2);
  });
}

TEST("different bytes of an allocation do not race") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUdeviceptr pointer = device.allocate(64);
    cuMemsetD8Async(pointer, 1, 32, device.stream);
    cuMemsetD8Async(pointer + 32, 2, 32, other);
    CHECK(standin_cuda_race_count() == 0);
  });
}

TEST("order is passed on from stream to stream") {
  in_process({}, [] {
    Device device;
    CUstream second = device.new_stream(), third = device.new_stream();
    CUevent event = device.new_event();
    CUdeviceptr pointer = device.allocate(64);
    cuMemsetD8Async(pointer, 1, 64, device.stream);
    cuEventRecord(event, device.stream);
    cuStreamWaitEvent(second, event, 0);
    cuEventRecord(event, second);
    cuStreamWaitEvent(third, event, 0);
    cuMemsetD8Async(pointer, 2, 64, third);
    CHECK(standin_cuda_race_count() == 0);
  });
}

TEST("copies that share pinned memory race as well") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    void* pinned = nullptr;
    cuMemHostAlloc(&pinned, 64, 0);
    CUdeviceptr first = device.allocate(64), second = device.allocate(64);
    cuMemcpyHtoDAsync_v2(first, pinned, 64, device.stream);
    cuMemcpyDtoHAsync_v2(pinned, second, 64, other);
    CHECK(standin_cuda_race_count() == 1);
  });
}

TEST("the detector can be switched off") {
  in_process({{"STANDIN_CUDA_RACE", "0"}}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUdeviceptr pointer = device.allocate(4);
    cuMemsetD8Async(pointer, 1, 4, device.stream);
    cuMemsetD8Async(pointer, 1, 4, other);
    CHECK(standin_cuda_race_count() == 0);
  });
}

TEST("work must lie inside one live block of an allocator") {
  Reports reports;
  const auto with_blocks = [&](const std::function<void(Device&, CUdeviceptr)>& body, CUresult result) {
    in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [&] {
      Device device;
      CUdeviceptr slab = device.allocate(4096);
      standin_cuda_note_block(slab, 512, 1);
      standin_cuda_note_block(slab + 512, 512, 1);
      body(device, slab);
      CHECK(cuStreamSynchronize(device.stream) == result);
    });
  };
  with_blocks([](Device& device, CUdeviceptr slab) { cuMemsetD8Async(slab + 512, 0, 512, device.stream); },
              CUDA_SUCCESS);
  CHECK(!reports.mention(":"));
  with_blocks([](Device& device, CUdeviceptr slab) { cuMemsetD8Async(slab + 256, 0, 512, device.stream); },
              CUDA_ERROR_ILLEGAL_ADDRESS);
  with_blocks([](Device& device, CUdeviceptr slab) { cuMemsetD8Async(slab + 1024, 0, 4, device.stream); },
              CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(reports.mention("OUT-OF-BOUNDS"));
  CHECK(!reports.mention("USE-AFTER-FREE"));
  with_blocks(
      [](Device& device, CUdeviceptr slab) {
        standin_cuda_note_block(slab, 512, 0);
        cuMemsetD8Async(slab, 0, 4, device.stream);
      },
      CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(reports.mention("USE-AFTER-FREE"));
}

TEST("a block may be released with work in flight, and its next owner must come after that work") {
  for (bool waits : {true, false}) {
    in_process({}, [&] {
      Device device;
      CUstream other = device.new_stream();
      CUevent event = device.new_event();
      CUdeviceptr slab = device.allocate(4096);
      standin_cuda_note_block(slab, 512, 1);
      cuMemsetD8Async(slab, 0, 512, device.stream);
      cuEventRecord(event, device.stream);
      standin_cuda_note_block(slab, 512, 0);
      standin_cuda_note_block(slab, 1024, 1);
      if (waits) cuStreamWaitEvent(other, event, 0);
      cuMemsetD8Async(slab + 256, 0, 512, other);
      CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
      CHECK(standin_cuda_race_count() == (waits ? 0 : 1));
      CHECK(standin_cuda_report_count() == (waits ? 0 : 1));
    });
  }
}

TEST("an allocator that notes a block twice, or releases one twice, is reported") {
  in_process({}, [] {
    Device device;
    CUdeviceptr slab = device.allocate(4096);
    standin_cuda_note_block(slab, 512, 1);
    standin_cuda_note_block(slab + 256, 512, 1);
    CHECK(standin_cuda_report_count() == 1);
    standin_cuda_note_block(slab + 2048, 512, 0);
    CHECK(standin_cuda_report_count() == 2);
  });
}
