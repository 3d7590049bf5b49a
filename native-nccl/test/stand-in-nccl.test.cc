// The operations of the stand-in of NCCL.
#include <cmath>
#include <cstring>
#include <limits>

#include "stand-in-world.h"

using namespace world;

// What rank r gives as element i; sums of these are exact.
static float given(int rank, size_t i) { return static_cast<float>((rank + 1) * 100 + static_cast<int>(i % 37)); }
static std::vector<float> given_by(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i++) values[i] = given(rank, i);
  return values;
}
static float sum_of(int size, size_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; rank++) sum += given(rank, i);
  return sum;
}

struct Rank {
  int size, rank;
  Device device;
  ncclComm_t comm;
  CUstream stream;

  Rank(int size_, int rank_, const ncclUniqueId& id)
      : size(size_), rank(rank_), device(rank_), comm(connect(size_, id, rank_)), stream(device.stream) {}
  // Destroys after all is done; no report may have been made.
  ~Rank() {
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(standin_cuda_report_count() == 0);
  }
};

static void all_collectives(int size, int rank_number, const ncclUniqueId& id) {
  Rank rank(size, rank_number, id);
  Device& device = rank.device;
  int count_of_comm = 0, rank_of_comm = -1;
  CHECK(ncclCommCount(rank.comm, &count_of_comm) == ncclSuccess && count_of_comm == size);
  CHECK(ncclCommUserRank(rank.comm, &rank_of_comm) == ncclSuccess && rank_of_comm == rank_number);
  for (size_t count : {size_t{1}, size_t{2}, size_t{5}, size_t{1009}}) {
    const int root = size - 1;
    CUdeviceptr input = device.upload(given_by(rank_number, count * size));
    CUdeviceptr output = device.upload(std::vector<float>(count * size, -1));
    complete(ncclAllReduce(host(input), host(output), count, ncclFloat32, ncclSum, rank.comm, rank.stream), rank.comm,
             rank.stream);
    auto reduced = device.download<float>(output, count);
    for (size_t i = 0; i < count; i++) CHECK(reduced[i] == sum_of(size, i));

    complete(ncclAllGather(host(input), host(output), count, ncclFloat32, rank.comm, rank.stream), rank.comm,
             rank.stream);
    auto gathered = device.download<float>(output, count * size);
    for (size_t i = 0; i < count * size; i++) CHECK(gathered[i] == given(static_cast<int>(i / count), i % count));

    complete(ncclReduceScatter(host(input), host(output), count, ncclFloat32, ncclSum, rank.comm, rank.stream),
             rank.comm, rank.stream);
    auto scattered = device.download<float>(output, count);
    for (size_t i = 0; i < count; i++) CHECK(scattered[i] == sum_of(size, rank_number * count + i));

    // Inputs that only the root has, and outputs that only the root has.
    complete(ncclBroadcast(rank_number == root ? host(input) : nullptr, host(output), count, ncclFloat32, root,
                           rank.comm, rank.stream),
             rank.comm, rank.stream);
    auto sent = device.download<float>(output, count);
    for (size_t i = 0; i < count; i++) CHECK(sent[i] == given(root, i));
    complete(ncclReduce(host(input), rank_number == root ? host(output) : nullptr, count, ncclFloat32, ncclSum, root,
                        rank.comm, rank.stream),
             rank.comm, rank.stream);
    if (rank_number == root) {
      auto at_root = device.download<float>(output, count);
      for (size_t i = 0; i < count; i++) CHECK(at_root[i] == sum_of(size, i));
    }
  }
}

TEST("every collective computes what it should, over 1, 2, 3, 4 and 7 processes") {
  for (int size : {1, 2, 3, 4, 7}) in_ranks(size, {}, [&](int rank, auto& id) { all_collectives(size, rank, id); });
}

TEST("every collective computes what it should over threads, with jitter and with serial streams") {
  for (int size : {1, 4}) {
    in_threads(size, {}, [&](int rank, auto& id) { all_collectives(size, rank, id); });
    in_threads(size, {{"STANDIN_CUDA_JITTER_US", "200"}}, [&](int rank, auto& id) { all_collectives(size, rank, id); });
    in_threads(size, {{"STANDIN_CUDA_STREAMS", "serial"}},
               [&](int rank, auto& id) { all_collectives(size, rank, id); });
  }
}

TEST("in place: the same buffer, or a rank's part of it; other overlaps are reported") {
  in_threads(3, {}, [](int r, auto& id) {
    Rank rank(3, r, id);
    CUdeviceptr buffer = rank.device.upload(given_by(r, 6));
    complete(ncclAllReduce(host(buffer), host(buffer), 6, ncclFloat32, ncclSum, rank.comm, rank.stream), rank.comm,
             rank.stream);
    CHECK(rank.device.template download<float>(buffer, 6)[5] == sum_of(3, 5));
    buffer = rank.device.upload(given_by(r, 6));
    complete(ncclReduceScatter(host(buffer), host(buffer + 8 * r), 2, ncclFloat32, ncclSum, rank.comm, rank.stream),
             rank.comm, rank.stream);
    CHECK(rank.device.template download<float>(buffer + 8 * r, 2)[1] == sum_of(3, 2 * r + 1));
    complete(ncclAllGather(host(buffer + 8 * r), host(buffer), 2, ncclFloat32, rank.comm, rank.stream), rank.comm,
             rank.stream);
    CHECK(rank.device.template download<float>(buffer, 6)[3] == sum_of(3, 3));
    CHECK(ncclAllReduce(host(buffer), host(buffer + 4), 5, ncclFloat32, ncclSum, rank.comm, rank.stream) ==
          ncclInvalidArgument);
  });
}

// One element of each rank, reduced.
template <class T>
static std::vector<T> reduce_each(const std::vector<std::vector<T>>& inputs, int dtype, int op) {
  const int size = static_cast<int>(inputs.size());
  in_threads(size, {}, [&](int r, auto& id) {
    Rank rank(size, r, id);
    CUdeviceptr buffer = rank.device.upload(inputs[r]);
    complete(ncclAllReduce(host(buffer), host(buffer), inputs[r].size(), dtype, op, rank.comm, rank.stream), rank.comm,
             rank.stream);
    auto values = rank.device.template download<T>(buffer, inputs[r].size());
    // The child of the test cannot give them back; rank 0 checks through a file.
    if (r == 0) {
      std::ofstream file("/tmp/stand-in-result-" + std::to_string(getppid()), std::ios::binary);
      file.write(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
  });
  const std::string path = "/tmp/stand-in-result-" + std::to_string(getpid());
  std::vector<T> values(inputs[0].size());
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
  unlink(path.c_str());
  return values;
}

TEST("integers of every width are reduced, and wrap") {
  CHECK((reduce_each<int8_t>({{100, -1}, {100, -2}}, ncclInt8, ncclSum) == std::vector<int8_t>{-56, -3}));
  CHECK((reduce_each<uint8_t>({{200, 3}, {100, 7}}, ncclUint8, ncclSum) == std::vector<uint8_t>{44, 10}));
  CHECK((reduce_each<uint8_t>({{200, 3}, {100, 7}}, ncclUint8, ncclMax) == std::vector<uint8_t>{200, 7}));
  CHECK((reduce_each<int32_t>({{7, -5}, {-3, 2}}, ncclInt32, ncclProd) == std::vector<int32_t>{-21, -10}));
  CHECK((reduce_each<int64_t>({{1ll << 62, -9}, {1ll << 62, 4}}, ncclInt64, ncclMin) ==
         std::vector<int64_t>{1ll << 62, -9}));
  CHECK((reduce_each<int64_t>({{1ll << 62}, {1ll << 62}}, ncclInt64, ncclSum) ==
         std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
}

TEST("min and max lose NaN, sums and products keep it") {
  const float nan = NAN;
  CHECK((reduce_each<float>({{nan, 2}, {1, 5}}, ncclFloat32, ncclMax) == std::vector<float>{1, 5}));
  CHECK((reduce_each<float>({{nan, 2}, {1, 5}}, ncclFloat32, ncclMin) == std::vector<float>{1, 2}));
  CHECK(std::isnan(reduce_each<float>({{nan}, {1}}, ncclFloat32, ncclSum)[0]));
}

TEST("an average multiplies each input by 1/ranks, in the type, and then sums") {
  // One element: rank 1's comes first, rank 0's last.
  const float third = 1.0f / 3;
  CHECK((reduce_each<float>({{1}, {4}, {5}}, ncclFloat32, ncclAvg) ==
         std::vector<float>{4 * third + 5 * third + 1 * third}));
  const double wide = 1.0 / 3;
  CHECK((reduce_each<double>({{1}, {4}, {5}}, ncclFloat64, ncclAvg) ==
         std::vector<double>{4 * wide + 5 * wide + 1 * wide}));
  // float16. The largest number stays; the smallest denormal, halved, rounds to 0 in each input; 3 of them to 2.
  const uint16_t largest = 0x7bff;
  CHECK((reduce_each<uint16_t>({{largest, 1, 3}, {largest, 1, 3}}, ncclFloat16, ncclAvg) ==
         std::vector<uint16_t>{largest, 0, 4}));
  // A third is 1365/4096: five times that is 0x3eaa, where the average, rounded once, is 0x3eab.
  CHECK((reduce_each<uint16_t>({{0x4500}, {0}, {0}}, ncclFloat16, ncclAvg) == std::vector<uint16_t>{0x3eaa}));
  // bfloat16: a third is 171/512.
  CHECK((reduce_each<uint16_t>({{0x3f80}, {0}, {0}}, ncclBfloat16, ncclAvg) == std::vector<uint16_t>{0x3eab}));
}

TEST("16-bit sums are rounded at each step") {
  // bfloat16: 256 + 1 is 256 again, so three ones after it are lost; before it they are not.
  const uint16_t big = 0x4380, one = 0x3f80;
  // One element: its chunk is rank 0's, whose ring begins with rank 1 and ends with rank 0.
  CHECK((reduce_each<uint16_t>({{one}, {big}, {one}}, ncclBfloat16, ncclSum) == std::vector<uint16_t>{big}));
  // ((1 + 1) + 256) is 258.
  CHECK((reduce_each<uint16_t>({{big}, {one}, {one}}, ncclBfloat16, ncclSum) == std::vector<uint16_t>{0x4381}));
  // float16: 2048 + 1 is 2048; 1 + 2^-11 is 1; 65504 + 65504 is infinite; two smallest denormals add up.
  CHECK((reduce_each<uint16_t>({{0x6800, 0x3c00, 0x7bff, 1}, {0x3c00, 0x1000, 0x7bff, 1}}, ncclFloat16, ncclSum) ==
         std::vector<uint16_t>{0x6800, 0x3c00, 0x7c00, 2}));
}

TEST("chunks are summed in the order of a ring, which differs from chunk to chunk") {
  // 2^24 + 1 is 2^24: the sum shows whether the two ones met before they met the big one.
  const float big = 16777216;
  const std::vector<std::vector<float>> inputs{{big, big, big}, {1, 1, 1}, {1, 1, 1}};
  // Chunk 0: 1 + 1 + big. Chunk 1: rank 2, 0, 1. Chunk 2: rank 0, 1, 2.
  CHECK((reduce_each<float>(inputs, ncclFloat32, ncclSum) == std::vector<float>{big + 2, big, big}));
}

TEST("sends and receives of a group advance together, in order for each pair, to oneself too") {
  in_threads(3, {}, [](int r, auto& id) {
    Rank rank(3, r, id);
    CUdeviceptr mine = rank.device.upload(given_by(r, 4)), theirs = rank.device.upload(std::vector<float>(12, -1));
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < 3; peer++) {
      for (int half = 0; half < 2; half++) {
        CHECK(ncclSend(host(mine + 8 * half), 2, ncclFloat32, peer, rank.comm, rank.stream) == ncclSuccess);
        CHECK(ncclRecv(host(theirs + 16 * peer + 8 * half), 2, ncclFloat32, peer, rank.comm, rank.stream) ==
              ncclSuccess);
      }
    }
    complete(ncclGroupEnd(), rank.comm, rank.stream);
    auto values = rank.device.template download<float>(theirs, 12);
    for (int i = 0; i < 12; i++) CHECK(values[i] == given(i / 4, i % 4));
    CHECK(ncclSend(host(mine), 4, ncclFloat32, r, rank.comm, rank.stream) == ncclInvalidUsage);
    CHECK(std::strstr(ncclGetLastError(rank.comm), "without a matching recv"));
  });
}

TEST("a send ends only when its receive is there") {
  in_threads(2, {}, [](int r, auto& id) {
    Rank rank(2, r, id);
    CUdeviceptr buffer = rank.device.allocate(4);
    if (r == 1) sleep_ms(60);
    const auto begin = std::chrono::steady_clock::now();
    if (r == 0) complete(ncclSend(host(buffer), 1, ncclFloat32, 1, rank.comm, rank.stream), rank.comm, rank.stream);
    else complete(ncclRecv(host(buffer), 1, ncclFloat32, 0, rank.comm, rank.stream), rank.comm, rank.stream);
    if (r == 0) CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(40));
  });
}

TEST("a group holds several collectives, and nothing of count 0 is waited for") {
  in_threads(2, {}, [](int r, auto& id) {
    Rank rank(2, r, id);
    CUdeviceptr first = rank.device.upload(given_by(r, 3)), second = rank.device.upload(given_by(r, 5));
    ncclGroupStart();
    ncclAllReduce(host(first), host(first), 3, ncclFloat32, ncclSum, rank.comm, rank.stream);
    CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, rank.comm, rank.stream) == ncclSuccess);
    ncclAllReduce(host(second), host(second), 5, ncclFloat32, ncclMax, rank.comm, rank.stream);
    complete(ncclGroupEnd(), rank.comm, rank.stream);
    CHECK(rank.device.template download<float>(first, 3)[2] == sum_of(2, 2));
    CHECK(rank.device.template download<float>(second, 5)[4] == given(1, 4));
    CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, rank.comm, rank.stream) == ncclSuccess);
  });
}

TEST("split makes groups by color, ordered by key, and none for color -1") {
  in_threads(4, {{"STANDIN_NCCL_LAUNCH_DELAY_US", "50000"}}, [](int r, auto& id) {
    Rank rank(4, r, id);
    ncclComm_t child = reinterpret_cast<ncclComm_t>(1);
    // Ranks 0, 1 and 3, in reverse order.
    CHECK(ncclCommSplit(rank.comm, r == 2 ? -1 : 5, -r, &child, nullptr) == ncclInProgress);
    CHECK(__atomic_load_n(&child, __ATOMIC_ACQUIRE) == nullptr);
    CHECK(settle(rank.comm) == ncclSuccess);
    if (r == 2) return CHECK(child == nullptr);
    CHECK(settle(child) == ncclSuccess);
    int child_rank = -1, child_size = 0;
    ncclCommUserRank(child, &child_rank);
    ncclCommCount(child, &child_size);
    CHECK(child_size == 3);
    CHECK(child_rank == (r == 3 ? 0 : r == 1 ? 1 : 2));
    CUdeviceptr buffer = rank.device.upload(given_by(r, 1));
    complete(ncclAllReduce(host(buffer), host(buffer), 1, ncclFloat32, ncclSum, child, rank.stream), child,
             rank.stream);
    CHECK(rank.device.template download<float>(buffer, 1)[0] == given(0, 0) + given(1, 0) + given(3, 0));
    CHECK(ncclCommDestroy(child) == ncclSuccess);
  });
}

TEST("many communicators come and go quickly, and large data passes") {
  in_threads(2, {}, [](int r, auto& id) {
    Rank rank(2, r, id);
    const size_t count = 1 << 20;
    CUdeviceptr buffer = rank.device.upload(std::vector<float>(count, r + 1));
    for (int i = 0; i < 50; i++) {
      ncclComm_t child = nullptr;
      CHECK(ncclCommSplit(rank.comm, 0, r, &child, nullptr) == ncclInProgress);
      CHECK(settle(rank.comm) == ncclSuccess);
      CHECK(settle(child) == ncclSuccess);
      CHECK(ncclCommFinalize(child) == ncclInProgress);
      CHECK(settle(child) == ncclSuccess);
      CHECK(ncclCommDestroy(child) == ncclSuccess);
    }
    complete(ncclAllReduce(host(buffer), host(buffer), count, ncclFloat32, ncclSum, rank.comm, rank.stream), rank.comm,
             rank.stream);
    CHECK(rank.device.template download<float>(buffer, count) == std::vector<float>(count, 3));
  });
}
