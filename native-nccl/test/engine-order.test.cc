// What the engine promises about order: accesses to a block happen in the order of the commands, whatever their
// streams; a collective is done when it is done; memory has one owner at a time. The stand-in driver reports every
// access that is not ordered after an earlier one, whatever the timing; a report fails the test.
#include "engine-ranks.h"

using namespace ranks;

constexpr size_t count = 1000;

// Long enough that a missing wait is seen by value too.
static const Variables slow = {{"STANDIN_NCCL_OP_DELAY_US", "3000"}};

static float sum_of_ranks(int size) { return static_cast<float>(size * (size - 1) / 2); }

static void chain(Rank& self) {
  self.start();
  BlockRef block = self.block(count * 4), other = self.block(count * 4);
  std::vector<float> values(count, static_cast<float>(self.rank)), result(count), again(count);
  Later up, done, down, down_again;
  upload(block, 0, values.data(), count * 4, 3000, up.completion());
  done = self.all_reduce(block, count);
  copy(other, 0, block, 0, count * 4);
  download(other, 0, result.data(), count * 4, 3000, down.completion());
  download(block, 0, again.data(), count * 4, 3000, down_again.completion());
  for (const Later& later : {up, done, down, down_again}) CHECK(later.get().ok());
  CHECK(result == std::vector<float>(count, sum_of_ranks(self.size)));
  CHECK(again == result);
  CHECK(self.destroy(self.world).ok());
  CHECK(self.close().ok());
}

TEST("upload, collective, copy and download of one block follow each other over four streams, in 4 processes") {
  in_processes(4, chain, {slow});
}

TEST("upload, collective, copy and download of one block follow each other over four streams, in 4 threads") {
  in_threads(4, chain, {slow});
}

TEST("the order holds where streams run one command at a time, and where they are slow at random") {
  in_processes(2, chain, {{{"STANDIN_CUDA_STREAMS", "serial"}}});
  in_processes(2, chain, {{{"STANDIN_CUDA_JITTER_US", "500"}, {"STANDIN_CUDA_SEED", "7"}}});
}

TEST("a writer waits for earlier readers on other streams") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1), sum = self.block(count * 4);
    Operation operation = Rank::reduce_of(block, count);
    operation.recv = sum;
    Later done = self.start_collective(self.world, {operation});
    Later up;
    std::vector<float> later_values(count, 100);
    upload(block, 0, later_values.data(), count * 4, 3000, up.completion());
    CHECK(done.get().ok() && up.get().ok());
    CHECK(self.download(sum, count) == std::vector<float>(count, 2));
  }, {slow});
}

TEST("a collective is not done before NCCL has put it on the stream") {
  in_processes(2, [](Rank& self) {
    self.start();
    for (int round = 0; round < 3; round++) {
      BlockRef block = self.filled(count, static_cast<float>(self.rank + 1));
      CHECK(self.all_reduce(block, count).get().ok());
      CHECK(self.download(block, count) == std::vector<float>(count, 3));
    }
  }, {{{"STANDIN_NCCL_LAUNCH_DELAY_US", "4000"}, {"STANDIN_NCCL_OP_DELAY_US", "4000"}}});
}

TEST("send and receive that are not in one group are issued one after the other, and meet") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef sent = self.filled(count, static_cast<float>(self.rank + 1)), received = self.block(count * 4);
    auto operation = [&](Operation::Kind kind) {
      Operation result{kind, kind == Operation::Send ? sent : nullptr, kind == Operation::Recv ? received : nullptr};
      result.count = count;
      result.dtype = ncclFloat32;
      result.root = 1 - self.rank;
      return result;
    };
    Later first = self.start_collective(self.world, {operation(self.rank ? Operation::Recv : Operation::Send)});
    Later second = self.start_collective(self.world, {operation(self.rank ? Operation::Send : Operation::Recv)});
    CHECK(first.get().ok() && second.get().ok());
    CHECK(self.download(received, count)[7] == static_cast<float>(2 - self.rank));
    // In one group, in either order.
    first = self.start_collective(self.world, {operation(Operation::Send), operation(Operation::Recv)});
    CHECK(first.get().ok());
    CHECK(self.download(received, count)[7] == static_cast<float>(2 - self.rank));
    // Both send first, without a group: nobody receives, and the deadline ends it.
    Later hung = self.start_collective(self.world, {operation(Operation::Send)}, 250);
    CHECK(hung.get().code == Code::Timeout);
    CHECK(self.close().ok());
  });
}

TEST("memory that is released stays in use until the collective is done") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(4096, 1);
    size_t used = stats(self.engine).used_bytes;
    Later done = self.all_reduce(block, 4096);
    block.reset();
    // What another owner would write at once, if it could get the memory.
    BlockRef next = self.filled(4096, 50);
    CHECK(done.count() == 0);
    CHECK(stats(self.engine).used_bytes == 2 * used);
    CHECK(done.get().ok());
    CHECK(eventually([&] { return stats(self.engine).used_bytes == used; }));
    CHECK(self.download(next, 4096) == std::vector<float>(4096, 50));
  }, {{{"STANDIN_NCCL_OP_DELAY_US", "50000"}}});
}

TEST("memory that goes from owner to owner over three streams is ordered for each") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef keep = self.filled(4096, 1);
    std::vector<Later> all;
    std::vector<std::vector<float>> results(30, std::vector<float>(4096));
    std::vector<float> values(4096, 3);
    for (size_t round = 0; round < results.size(); round++) {
      BlockRef block = self.block(4096 * 4);
      Later up, down;
      upload(block, 0, values.data(), values.size() * 4, 3000, up.completion());
      if (round % 3 == 0) all.push_back(self.all_reduce(block, 4096));
      if (round % 3 == 1) copy(block, 0, keep, 0, 4096 * 4);
      download(block, 0, results[round].data(), 4096 * 4, 3000, down.completion());
      all.push_back(up);
      all.push_back(down);
      // Let some come free in between.
      if (round % 4 == 3) all.back().get();
    }
    for (const Later& later : all) CHECK(later.get().ok());
    for (size_t round = 0; round < results.size(); round++) {
      float expected = round % 3 == 0 ? 6 : round % 3 == 1 ? 1 : 3;
      CHECK(results[round] == std::vector<float>(4096, expected));
    }
    CHECK(stats(self.engine).reserved_bytes <= size_t(4) << 20);
  }, {{{"STANDIN_CUDA_JITTER_US", "300"}, {"STANDIN_NCCL_OP_DELAY_US", "500"}}});
}

TEST("all gather and reduce scatter work in place, at their rank's offset, and at offsets of odd elements") {
  in_processes(4, [](Rank& self) {
    self.start();
    const size_t part = 13, size = static_cast<size_t>(self.size), rank = static_cast<size_t>(self.rank);
    // The whole begins 3 elements into the block.
    BlockRef block = self.filled(3 + part * size, -1);
    CHECK(self.upload(block, std::vector<float>(part, static_cast<float>(rank)), (3 + part * rank) * 4).ok());
    Operation gather{Operation::AllGather, block, block, (3 + part * rank) * 4, 12, part, ncclFloat32};
    CHECK(self.start_collective(self.world, {gather}).get().ok());
    std::vector<float> whole = self.download(block, part * size, 12);
    for (size_t i = 0; i < whole.size(); i++) CHECK(whole[i] == static_cast<float>(i / part));
    Operation scatter{Operation::ReduceScatter, block, block, 12, (3 + part * rank) * 4, part, ncclFloat32, ncclSum};
    CHECK(self.start_collective(self.world, {scatter}).get().ok());
    CHECK(self.download(block, part, (3 + part * rank) * 4) == std::vector<float>(part, static_cast<float>(4 * rank)));
    CHECK(self.download(block, 3)[2] == -1);
  });
}

TEST("collectives, transfers and copies of nothing are done") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef empty = self.block(0);
    CHECK(bytes_of(empty) == 0);
    CHECK(self.upload(empty, std::vector<float>{}).ok());
    CHECK(self.all_reduce(empty, 0).get().ok());
    copy(empty, 0, empty, 0, 0);
    CHECK(self.download(empty, 0).empty());
    CHECK(self.synchronize().ok());
  });
}

static size_t seen_count;
static ncclResult_t note_all_reduce(const void*, void*, size_t count, int, int, ncclComm_t, CUstream) {
  seen_count = count;
  return ncclSuccess;
}

TEST("a count whose bytes are beyond 2^32 reaches NCCL whole") {
  alone([](Rank& self) {
    self.start();
    BlockRef block = self.block(4);
    nccl().ncclAllReduce = note_all_reduce;
    CHECK(self.all_reduce(block, size_t(5) << 30).get().ok());
    CHECK(seen_count == size_t(5) << 30);
  });
}

TEST("more operations than fit on a stream at once are all done, in order") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(1, 1), copy_of = self.filled(1, 0);
    std::vector<Later> all;
    for (int i = 0; i < 700; i++) {
      // Doubles with every collective and is set back by every copy.
      if (i % 2) copy(block, 0, copy_of, 0, 4);
      else all.push_back(self.all_reduce(block, 1));
    }
    size_t most = 0;
    while (all.back().count() == 0) most = std::max(most, stats(self.engine).in_flight);
    CHECK(most <= 2 * Limits{}.in_flight + 8);
    for (const Later& later : all) CHECK(later.get().ok());
    CHECK(self.download(block, 1)[0] == 0);
    CHECK(flight_recorder(self.engine).size() == 350);
  });
}

TEST("synchronize waits for all that was asked before, and for nothing else") {
  in_processes(2, [](Rank& self) {
    self.start();
    BlockRef block = self.filled(count, 1);
    std::vector<float> values(300000, 2), result(300000);
    BlockRef big = self.block(values.size() * 4);
    Later reduced = self.all_reduce(block, count), up, down, synchronized;
    upload(big, 0, values.data(), values.size() * 4, 3000, up.completion());
    download(big, 0, result.data(), values.size() * 4, 3000, down.completion());
    synchronize(self.engine, 3000, synchronized.completion());
    CHECK(synchronized.get().ok());
    CHECK(reduced.count() == 1 && up.count() == 1 && down.count() == 1);
    CHECK(result == values);
  }, {slow});
}
