// Streams, events and memory of the stand-in driver.
#include <cstring>

#include "stand-in-world.h"

using namespace world;

TEST("a copy to the device and back keeps the bytes, and new memory is not zeroed") {
  in_process({}, [] {
    Device device;
    std::vector<int> values{1, 2, 3, 4, 5};
    CHECK(device.download<int>(device.upload(values), 5) == values);
    CHECK(device.download<unsigned char>(device.allocate(3), 3) == std::vector<unsigned char>(3, 0xCD));
    CUdeviceptr pointer = device.allocate(8);
    cuMemsetD32Async(pointer, 0x01020304, 2, device.stream);
    CHECK(device.download<unsigned>(pointer, 2) == std::vector<unsigned>(2, 0x01020304));
    CHECK(standin_cuda_report_count() == 0);
  });
}

TEST("a device pointer cannot be followed on the host") {
  const pid_t child = start({}, [] {
    Device device;
    *static_cast<volatile int*>(host(device.allocate(4))) = 1;
  });
  int status;
  waitpid(child, &status, 0);
  CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

// Work that takes as long as it is told.
static int take_long(void*, void**) {
  sleep_ms(60);
  return 0;
}
static void drop_nothing(void*) {}
static void enqueue_long(CUstream stream) {
  CHECK(standin_cuda_enqueue(stream, "long", nullptr, 0, take_long, nullptr, drop_nothing) == CUDA_SUCCESS);
}

TEST("streams run beside each other, and an event orders them") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUevent event = device.new_event();
    enqueue_long(device.stream);
    cuEventRecord(event, device.stream);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  });
}

TEST("waiting for an event that was never recorded is no wait, and it counts as done") {
  in_process({}, [] {
    Device device;
    CUstream other = device.new_stream();
    CUevent event = device.new_event();
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    enqueue_long(device.stream);
    cuEventRecord(event, device.stream);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  });
}

TEST("with serial streams one waits for all work enqueued before") {
  in_process({{"STANDIN_CUDA_STREAMS", "serial"}}, [] {
    Device device;
    CUstream other = device.new_stream();
    enqueue_long(device.stream);
    cuMemsetD8Async(device.allocate(1), 0, 1, other);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(device.stream) == CUDA_SUCCESS);
  });
}

TEST("jitter keeps the order of a stream") {
  in_process({{"STANDIN_CUDA_JITTER_US", "300"}, {"STANDIN_CUDA_SEED", "7"}}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    for (unsigned i = 0; i < 50; i++) cuMemsetD32Async(pointer, i, 1, device.stream);
    CHECK(device.download<unsigned>(pointer, 1)[0] == 49);
  });
}

TEST("the time between two events is that of the work, and an event without timing has none") {
  in_process({}, [] {
    Device device;
    CUevent first = device.new_event(0), second = device.new_event(0), untimed = device.new_event();
    cuEventRecord(first, device.stream);
    enqueue_long(device.stream);
    cuEventRecord(second, device.stream);
    cuEventRecord(untimed, device.stream);
    float milliseconds = 0;
    CHECK(cuEventElapsedTime(&milliseconds, first, second) == CUDA_ERROR_NOT_READY);
    CHECK(cuEventSynchronize(second) == CUDA_SUCCESS);
    CHECK(cuEventElapsedTime(&milliseconds, first, second) == CUDA_SUCCESS);
    CHECK(milliseconds >= 55);
    CHECK(cuEventElapsedTime(&milliseconds, first, untimed) == CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST("memory is limited, by device, and comes back when freed") {
  in_process({{"STANDIN_CUDA_MEM_MB", "2"}, {"STANDIN_CUDA_DEVICES", "2"}}, [] {
    Device device(0);
    CUdeviceptr first = device.allocate(1 << 20), second = device.allocate(1 << 20), third;
    CHECK(cuMemAlloc_v2(&third, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    size_t free_bytes = 1, total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
    CHECK(free_bytes == 0);
    CHECK(total == 2u << 20);
    CHECK(cuMemFree_v2(first) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&third, 1 << 20) == CUDA_SUCCESS);
    Device other(1);
    other.allocate(1 << 20);
    (void)second;
  });
}

TEST("freeing memory waits for the device, unless told not to") {
  in_process({}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    enqueue_long(device.stream);
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(device.stream) == CUDA_SUCCESS);
  });
  in_process({{"STANDIN_CUDA_FREE", "nosync"}}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    enqueue_long(device.stream);
    cuMemsetD8Async(pointer, 0, 4, device.stream);
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(device.stream) == CUDA_ERROR_NOT_READY);
    // What was enqueued before now meets freed memory.
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(standin_cuda_report_count() == 1);
  });
}

TEST("use after free and out of bounds are reported, and the error stays") {
  Reports reports;
  in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    cuMemFree_v2(pointer);
    CHECK(cuMemsetD8Async(pointer, 0, 4, device.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  CHECK(reports.mention("USE-AFTER-FREE: cuMemsetD8Async"));
  in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [] {
    Device device;
    cuMemsetD8Async(device.allocate(4), 0, 5, device.stream);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  CHECK(reports.mention("OUT-OF-BOUNDS: cuMemsetD8Async"));
}

TEST("an error of one device leaves the others alone, and memory belongs to its device") {
  Reports reports;
  in_process({{"STANDIN_CUDA_REPORT", reports.path}, {"STANDIN_CUDA_DEVICES", "2"}}, [] {
    Device first(0);
    CUdeviceptr pointer = first.allocate(4);
    Device second(1);
    cuMemsetD8Async(pointer, 0, 4, second.stream);
    CHECK(cuStreamSynchronize(second.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuStreamQuery(first.stream) == CUDA_SUCCESS);
  });
  CHECK(reports.mention("WRONG-DEVICE"));
}

TEST("freed memory is overwritten, and freeing it twice is reported") {
  Reports reports;
  in_process({{"STANDIN_CUDA_REPORT", reports.path}}, [] {
    Device device;
    void* pinned = nullptr;
    CHECK(cuMemHostAlloc(&pinned, 16, 0) == CUDA_SUCCESS);
    CHECK(*static_cast<unsigned char*>(pinned) == 0xCD);
    CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
    CHECK(*static_cast<unsigned char*>(pinned) == 0xDB);
    CHECK(cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr pointer = device.allocate(4);
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(pointer) == CUDA_ERROR_INVALID_VALUE);
    CHECK(standin_cuda_report_count() == 2);
  });
  CHECK(reports.mention("BAD-FREE: cuMemFreeHost"));
}

TEST("a copy from pinned memory that was freed is found") {
  in_process({{"STANDIN_CUDA_FREE", "nosync"}}, [] {
    Device device;
    void* pinned = nullptr;
    cuMemHostAlloc(&pinned, 16, 0);
    CUdeviceptr pointer = device.allocate(16);
    enqueue_long(device.stream);
    cuMemcpyHtoDAsync_v2(pointer, pinned, 16, device.stream);
    cuMemFreeHost(pinned);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(standin_cuda_report_count() == 1);
  });
}

TEST("a sticky error strikes at the n-th kernel or copy") {
  in_process({{"STANDIN_CUDA_STICKY_AT", "3"}}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    for (int i = 0; i < 2; i++) cuMemsetD8Async(pointer, 0, 4, device.stream);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(pointer, 0, 4, device.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemsetD8Async(pointer, 0, 4, device.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(standin_cuda_report_count() == 0);
  });
}

TEST("any call can be made to fail, always or once") {
  in_process({{"STANDIN_CUDA_FAIL", "cuMemAlloc_v2:2:2,cuEventCreate:999"}}, [] {
    Device device;
    CUdeviceptr pointer = device.allocate(4);
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_SUCCESS);
    CUevent event;
    for (int i = 0; i < 2; i++) CHECK(cuEventCreate(&event, 0) == CUDA_ERROR_UNKNOWN);
  });
}

TEST("calls without a context, after the context, and on handles that ended fail") {
  in_process({}, [] {
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_NOT_INITIALIZED);
    cuInit(0);
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_INVALID_CONTEXT);
    Device device;
    CUevent event = device.new_event();
    CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, device.stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuStreamDestroy_v2(device.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(device.stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&pointer, 4) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST("without devices there is no driver") {
  in_process({{"STANDIN_CUDA_DEVICES", "0"}}, [] { CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE); });
}

TEST("devices have identities of their own, unless all are given one") {
  in_process({{"STANDIN_CUDA_DEVICES", "2"}}, [] {
    Device device;
    CUuuid first, second;
    cuDeviceGetUuid_v2(&first, 0);
    cuDeviceGetUuid_v2(&second, 1);
    CHECK(std::memcmp(&first, &second, sizeof first) != 0);
    setenv("STANDIN_CUDA_UUID", "000102030405060708090a0b0c0d0e0f", 1);
    cuDeviceGetUuid_v2(&first, 0);
    cuDeviceGetUuid_v2(&second, 1);
    CHECK(std::memcmp(&first, &second, sizeof first) == 0);
    CHECK(first.bytes[15] == 0x0f);
  });
}

TEST("the default stream is not served") {
  in_process({}, [] {
    Device device;
    CHECK(cuMemsetD8Async(device.allocate(4), 0, 4, nullptr) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(standin_cuda_report_count() == 1);
  });
}
