// Loading of the driver and of NCCL: what is missing, old or broken is said in words, never by an exception or a crash.
#include "engine-ranks.h"

using namespace ranks;

static void loading(const Variables& variables, const std::function<void()>& body) {
  std::fflush(stdout);
  pid_t process = fork();
  if (process == 0) run_process({variables, true}, body);
  wait_for_processes({process});
}

static std::string cuda_path() { return build_folder() + "libcuda.so.1"; }
static std::string nccl_path() { return build_folder() + "libnccl.so.2"; }

TEST("the first path that loads is used; its version, all paths that were tried and the devices are told") {
  loading({}, [] {
    const Probe& found = probe({"/no/such/libcuda.so.1", cuda_path(), "libcuda.so.1"}, {nccl_path()});
    CHECK(found.cuda.is_loaded && found.cuda.path == cuda_path() && found.cuda.error.empty());
    CHECK((found.cuda.tried == std::vector<std::string>{"/no/such/libcuda.so.1", cuda_path()}));
    CHECK(found.cuda.version == 13000 && found.nccl.version >= NCCL_OLDEST && found.nccl.is_loaded);
    CHECK(found.device_count == 8);
    CHECK(library_status().ok());
    // The first call decides.
    CHECK(&probe({"/elsewhere"}, {}) == &found && found.cuda.path == cuda_path());
  });
}

TEST("missing libraries are told with each path and the loader's words") {
  loading({}, [] {
    CHECK(library_status().code == Code::Unavailable);
    const Probe& found = probe({"/no/such/libcuda.so.1"}, {"/no/such/a.so", "/no/such/b.so"});
    CHECK(!found.cuda.is_loaded && contains(found.cuda.error, "/no/such/libcuda.so.1") && found.cuda.path.empty());
    CHECK(!found.nccl.is_loaded && contains(found.nccl.error, "a.so") && contains(found.nccl.error, "b.so"));
    CHECK(found.nccl.tried.size() == 2 && found.device_count == 0);
    Status status;
    CHECK(open_device(0, "", &status) == nullptr && status.code == Code::Unavailable);
    CHECK(contains(status.message, "/no/such/libcuda.so.1"));
    uint8_t id[128];
    CHECK(unique_id(id).code == Code::Unavailable);
    DeviceInfo info;
    CHECK(device_info(0, &info).code == Code::Unavailable);
  });
}

TEST("a library that is not the one that was asked for lacks a function, whose name is told") {
  loading({}, [] {
    const Probe& found = probe({build_folder() + "libkernels.so"}, {cuda_path()});
    CHECK(!found.cuda.is_loaded && contains(found.cuda.error, "lacks the function cuInit"));
    CHECK(!found.nccl.is_loaded && contains(found.nccl.error, "lacks the function ncclGetVersion"));
  });
}

TEST("an NCCL that is too old is refused, with both versions in words") {
  loading({{"STANDIN_NCCL_VERSION", "22402"}}, [] {
    load();
    const LibraryProbe& found = probe({}, {}).nccl;
    CHECK(!found.is_loaded && found.version == 22402 && found.path == nccl_path());
    CHECK(contains(found.error, "2.24.2") && contains(found.error, "2.24.3"));
    Status status;
    CHECK(open_device(0, "", &status) == nullptr && status.code == Code::Unavailable);
    CHECK(contains(status.message, "2.24.2"));
  });
  loading({{"STANDIN_NCCL_VERSION", "22403"}}, [] { CHECK(load().nccl.is_loaded); });
}

TEST("a driver that cannot start and a machine without a device are told apart from a missing driver") {
  loading({{"STANDIN_CUDA_FAIL", "cuInit:999"}}, [] {
    const Probe& found = load();
    CHECK(!found.cuda.is_loaded && contains(found.cuda.error, "cuInit returned 999") && found.device_count == 0);
    CHECK(found.cuda.version == 13000 && found.cuda.path == cuda_path());
  });
  loading({{"STANDIN_CUDA_DEVICES", "0"}}, [] {
    const Probe& found = load();
    CHECK(contains(found.cuda.error, "no CUDA device") && found.device_count == 0);
  });
}

TEST("a device is described by name, 32 digits of its uuid, bus id, memory and compute capability") {
  loading({}, [] {
    load();
    DeviceInfo first, second;
    CHECK(device_info(0, &first).ok() && device_info(1, &second).ok());
    CHECK(!first.name.empty() && first.uuid.size() == 32 && first.uuid != second.uuid);
    CHECK(first.uuid.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(contains(first.pci_bus_id, ":") && first.pci_bus_id != second.pci_bus_id);
    CHECK(first.total_bytes == size_t(64) << 20 && first.compute_major >= 7);
    Status status = device_info(8, &first);
    CHECK(status.code == Code::Cuda && status.call == "cuDeviceGet");
  });
}
