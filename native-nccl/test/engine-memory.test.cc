// Device memory, the copies between it and the host, and kernels.
#include <fstream>
#include <sstream>

#include "../src/block.h"
#include "engine-ranks.h"

using namespace ranks;

constexpr size_t mega = size_t(1) << 20;

TEST("memory is aligned to 512 bytes, reused, joined with free neighbours, and given back by trim alone") {
  alone([](Rank& self) {
    CHECK(self.open());
    Status status;
    std::vector<BlockRef> blocks;
    for (size_t bytes : {size_t(0), size_t(1), size_t(512), size_t(513), mega - 1, mega, 3 * mega}) {
      blocks.push_back(self.block(bytes));
      CHECK(blocks.back()->address % 512 == 0 && bytes_of(blocks.back()) == bytes);
    }
    size_t reserved = stats(self.engine).reserved_bytes;
    CHECK(stats(self.engine).used_bytes == 512 * 5 + mega + 2 * mega + 4 * mega);
    CUdeviceptr first = blocks[0]->address;
    blocks.clear();
    CHECK(stats(self.engine).used_bytes == 0 && stats(self.engine).reserved_bytes == reserved);
    // As one piece again, of what were many; a slab for small ones has 2 MiB.
    BlockRef again = self.block(mega - 512), more = self.block(mega - 512);
    CHECK(again->address == first || more->address == first);
    CHECK(stats(self.engine).reserved_bytes == reserved);
    again.reset();
    Later trimmed;
    trim(self.engine, trimmed.completion());
    CHECK(trimmed.get().ok());
    CHECK(stats(self.engine).reserved_bytes == 2 * mega);
    CHECK(stats(self.engine).total_bytes - stats(self.engine).free_bytes == 2 * mega);
    CHECK(self.close().ok());
  });
}

TEST("out of memory: what is unused goes back to the driver first, then the error says how much is where") {
  alone([](Rank& self) {
    CHECK(self.open());
    Status status;
    BlockRef half = self.block(32 * mega);
    CHECK(allocate(self.engine, 40 * mega, &status) == nullptr);
    CHECK(status.code == Code::OutOfMemory && status.call == "cuMemAlloc");
    for (const char* part : {"41943040 bytes", "33554432 in use", "33554432 reserved", "67108864"}) {
      CHECK(contains(status.message, part));
    }
    half.reset();
    // Cached, but of the wrong size.
    BlockRef whole = self.block(60 * mega);
    CHECK(whole && stats(self.engine).reserved_bytes == 60 * mega);
    CHECK(self.close().ok());
  });
}

TEST("out of memory: an allocation waits for memory that is released but in flight") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.block(40 * mega);
    Later done = self.all_reduce(block, 1000);
    block.reset();
    Status status;
    BlockRef next = allocate(self.engine, 40 * mega, &status);
    CHECK(next && status.ok());
    CHECK(done.get().ok());
  }, {{{"STANDIN_NCCL_OP_DELAY_US", "50000"}}});
}

TEST("out of memory while a collective hangs is an error in time, not a hang") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.block(30 * mega), unused = self.block(30 * mega);
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, 1000, 1500);
    unused.reset();
    sleep_ms(10);
    double begun = clock_ms();
    Status status;
    CHECK(allocate(self.engine, 50 * mega, &status) == nullptr && status.code == Code::OutOfMemory);
    CHECK(clock_ms() - begun < 1200 && hung.count() == 0);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    self.meet();
  });
}

TEST("big uploads and downloads go through the staging slots in chunks, several at once, without mixing") {
  alone([](Rank& self) {
    CHECK(self.open());
    const size_t bytes = 3 * mega + 12345;
    std::vector<std::vector<uint8_t>> sent, received;
    std::vector<BlockRef> blocks;
    std::vector<Later> all;
    for (int i = 0; i < 4; i++) {
      sent.emplace_back(bytes);
      received.emplace_back(bytes + 1, uint8_t(77));
      for (size_t at = 0; at < bytes; at++) sent[i][at] = static_cast<uint8_t>(at * 31 + at / 1000 + i);
      blocks.push_back(self.block(bytes + 3));
    }
    for (int i = 0; i < 4; i++) {
      upload(blocks[i], 3, sent[i].data(), bytes, 3000, all.emplace_back().completion());
      download(blocks[i], 3, received[i].data(), bytes, 3000, all.emplace_back().completion());
    }
    for (const Later& later : all) CHECK(later.get().ok());
    for (int i = 0; i < 4; i++) {
      CHECK(received[i].back() == 77);
      received[i].pop_back();
      CHECK(received[i] == sent[i]);
    }
    CHECK(self.close().ok());
  }, {{{"STANDIN_CUDA_JITTER_US", "200"}}});
}

TEST("a download that timed out never writes to its target again, and the other direction goes on") {
  in_processes(2, [](Rank& self) {
    self.start();
    std::vector<float> values(mega, 4);
    BlockRef block = self.block(4 * mega), other = self.block(4 * mega);
    CHECK(self.upload(block, values).ok());
    if (self.rank == 1) return self.meet();
    Later hung = self.all_reduce(block, mega, 1200), down;
    std::vector<float> target(mega, -1);
    download(block, 0, target.data(), 4 * mega, 150, down.completion());
    CHECK(down.get().code == Code::Timeout && contains(down.get().message, "download of 4194304 bytes"));
    std::fill(target.begin(), target.end(), -2);
    CHECK(self.upload(other, values).ok());
    CHECK(hung.count() == 0);
    comm_abort({self.world}, "enough");
    CHECK(hung.get().code == Code::Aborted);
    CHECK(self.synchronize().ok());
    CHECK(target == std::vector<float>(mega, -2));
    CHECK(self.download(other, mega) == values);
    self.meet();
    CHECK(self.close().ok());
  });
}

TEST("a command whose block has an upload under way waits for all of it, and others do not") {
  in_processes(2, [](Rank& self) {
    self.start();
    const size_t big = 2 * mega;
    BlockRef block = self.block(big * 4), result = self.block(big * 4);
    std::vector<float> values(big, 1);
    Later up;
    upload(block, 0, values.data(), big * 4, 3000, up.completion());
    Later done = self.all_reduce(block, big);
    copy(result, 0, block, 0, big * 4);
    CHECK(self.download(result, big) == std::vector<float>(big, 2));
    CHECK(up.get().ok() && done.get().ok());
  });
}

static std::string kernels_text() {
  std::ifstream file(build_folder() + "../../kernels/kernels.ptx");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

static CUresult refuse_load(CUfunction*, CUmodule, const char*) { return CUDA_ERROR_UNKNOWN; }
static CUresult refuse_pinning(void**, size_t, unsigned) { return CUDA_ERROR_UNKNOWN; }

TEST("all kernels are loaded when the device is opened, and pinned memory is taken then; none later") {
  alone([](Rank& self) {
    CHECK(self.open(0, kernels_text()));
    cuda().cuModuleGetFunction = refuse_load;
    cuda().cuMemHostAlloc = refuse_pinning;
    CHECK(has_kernel(self.engine, "add_scaled_float32") && !has_kernel(self.engine, "no_such_kernel"));
    BlockRef x = self.filled(1000, 2), y = self.filled(1000, 3);
    KernelArgument target{KernelArgument::Pointer, x, 0, 4000, true};
    KernelArgument source{KernelArgument::Pointer, y, 0, 4000, false};
    KernelArgument number{KernelArgument::UInt64, nullptr, 0, 0, false, 1000};
    KernelArgument factor{KernelArgument::Float32, nullptr, 0, 0, false, 0, 0, 1.5f};
    launch(self.engine, "add_scaled_float32", 4, 256, {target, source, number, factor});
    CHECK(self.download(x, 1000) == std::vector<float>(1000, 6.5f));
    CHECK(self.close().ok());
  });
}

TEST("a failed launch is the error of the next work, once") {
  alone([](Rank& self) {
    CHECK(self.open(0, kernels_text()));
    BlockRef x = self.filled(10, 2);
    launch(self.engine, "add_scaled_float32", 0, 256, {});
    Status status = self.synchronize();
    CHECK(status.code == Code::Cuda && status.call == "cuLaunchKernel" && !status.is_device_lost);
    CHECK(contains(status.message, "kernel add_scaled_float32"));
    CHECK(self.synchronize().ok());
    launch(self.engine, "add_scaled_float32", 0, 256, {});
    CHECK(self.upload(x, std::vector<float>(10, 1)).call == "cuLaunchKernel");
    CHECK(self.download(x, 10)[0] == 2);
  }, {{}, true});
}

TEST("kernels that the driver refuses are an error of opening, in words") {
  alone([](Rank&) {
    Status status;
    CHECK(open_device_with(0, "no ptx at all", short_limits(), &status) == nullptr);
    CHECK(status.code == Code::Cuda && status.call == "cuModuleLoadDataEx" && contains(status.message, "device 0"));
    // What the driver's compiler says.
    CHECK(contains(status.message, "CUDA_ERROR_INVALID_IMAGE): no .version in the text"));
    CHECK(open_device_with(99, "", short_limits(), &status) == nullptr);
    CHECK(status.code == Code::Cuda && status.call == "cuDeviceGet" && status.result == CUDA_ERROR_INVALID_DEVICE);
  }, {{}, true});
}
