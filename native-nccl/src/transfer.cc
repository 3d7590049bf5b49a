// Uploads and downloads of ordinary host memory, in chunks through the pinned staging slots. A transfer takes its turn
// in the queue, then goes on as a job beside it; commands that use its block wait until all its copies are on the
// stream.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

struct Transfer {
  Engine& engine;
  const WorkRef work;
  const BlockRef block;
  const size_t offset;
  char* const host;
  const size_t bytes;
  const bool is_upload;

  struct Chunk {
    void* slot;
    MarkRef mark;
    size_t at, bytes;
  };
  std::deque<Chunk> in_flight;
  size_t issued = 0;
  bool is_open = true;  // counted in block->open_transfers

  Stream stream() const { return is_upload ? copy_in_stream : copy_out_stream; }
  Step step();
  void issue();
  Status issue_chunk(void* slot, size_t chunk_bytes, MarkRef* mark);
  void collect();
  void stop_issuing();
};

// Until all is issued, or the work has ended otherwise; then until no copy uses a slot any more.
Step Transfer::step() {
  collect();
  if (is_open) issue();
  if (is_open && (issued == bytes || work->is_finished())) stop_issuing();
  if (!in_flight.empty()) return Step::Again;
  if (is_open) return Step::Again;
  if (issued == bytes) work->finish({});
  return Step::Done;
}

void Transfer::stop_issuing() {
  is_open = false;
  block->open_transfers--;
}

void Transfer::collect() {
  while (!in_flight.empty()) {
    Chunk& chunk = in_flight.front();
    CUresult result = chunk.mark->query();
    if (result == CUDA_ERROR_NOT_READY) return;
    if (result == CUDA_SUCCESS && !is_upload) {
      work->while_unfinished([&] { std::memcpy(host + chunk.at, chunk.slot, chunk.bytes); });
    }
    // Other results are sticky: the engine meets them too, and everything fails.
    engine.staging.give_back(chunk.slot, is_upload);
    in_flight.pop_front();
  }
}

void Transfer::issue() {
  while (issued < bytes && !work->is_finished() && engine.has_room(stream())) {
    void* slot = engine.staging.take(is_upload);
    if (!slot) return;
    size_t chunk_bytes = std::min(bytes - issued, engine.staging.slot_bytes());
    MarkRef mark;
    bool is_wanted = !is_upload || work->while_unfinished([&] { std::memcpy(slot, host + issued, chunk_bytes); });
    Status status = is_wanted ? issue_chunk(slot, chunk_bytes, &mark) : Status{};
    if (!mark) {
      // Without a mark nobody can tell when a copy is done with the slot; after an error none was begun.
      engine.staging.give_back(slot, is_upload);
      if (!status.ok()) work->finish(with_context(work->what(), status));
      return;
    }
    in_flight.push_back({slot, mark, issued, chunk_bytes});
    issued += chunk_bytes;
  }
}

Status Transfer::issue_chunk(void* slot, size_t chunk_bytes, MarkRef* mark) {
  CUstream handle = engine.stream(stream());
  CUdeviceptr address = block->address + offset + issued;
  Waits waits;
  block->hazards.collect(is_upload, &waits);
  Status status = engine.checked("cuStreamWaitEvent", waits.apply(stream(), handle));
  if (!status.ok()) return status;
  CUresult result = is_upload ? cuda().cuMemcpyHtoDAsync_v2(address, slot, chunk_bytes, handle)
                              : cuda().cuMemcpyDtoHAsync_v2(slot, address, chunk_bytes, handle);
  status = engine.checked(is_upload ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync", result);
  if (!status.ok()) return status;
  status = engine.track(stream(), nullptr, {block}, mark);
  if (*mark) block->hazards.note(*mark, is_upload);
  return status;
}

void transfer(const BlockRef& block, size_t offset, char* host, size_t bytes, bool is_upload, int64_t timeout_ms,
              Completion done) {
  std::string what = std::string(is_upload ? "upload of " : "download of ") + std::to_string(bytes) + " bytes";
  auto work = std::make_shared<Work>(what, timeout_ms, std::move(done));
  work->is_transfer = true;
  Engine* engine = block->engine.get();
  engine->post(work, [=] {
    // Two transfers of one block take turns, so that their copies do not mix.
    if (block->open_transfers) return Step::Again;
    Status deferred = engine->take_deferred();
    if (!deferred.ok()) {
      work->finish(with_context(work->what() + " after a failed command", deferred));
      return Step::Done;
    }
    block->open_transfers++;
    Transfer begun{*engine, work, block, offset, host, bytes, is_upload, {}, 0, true};
    auto state = std::make_shared<Transfer>(std::move(begun));
    if (state->step() == Step::Again) engine->watch([state] { return state->step(); });
    return Step::Done;
  });
}

}  // namespace

void upload(const BlockRef& block, size_t offset, const void* host, size_t bytes, int64_t timeout_ms, Completion done) {
  // Only ever read.
  char* memory = static_cast<char*>(const_cast<void*>(host));
  transfer(block, offset, memory, bytes, true, timeout_ms, std::move(done));
}

void download(const BlockRef& block, size_t offset, void* host, size_t bytes, int64_t timeout_ms, Completion done) {
  transfer(block, offset, static_cast<char*>(host), bytes, false, timeout_ms, std::move(done));
}

}  // namespace lockstep
