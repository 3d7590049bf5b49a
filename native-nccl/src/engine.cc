// The functions of engine.h on a device and its memory; transfers, kernels and collectives have files of their own.
#include "engine.h"

#include <atomic>
#include <thread>
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"
#include "latch.h"

namespace lockstep {

EngineRef open_device(int index, const std::string& ptx, Status* status) {
  return open_device_with(index, ptx, Limits{}, status);
}

EngineRef open_device_with(int index, const std::string& ptx, const Limits& limits, Status* status) {
  auto fail = [&](Status reason) -> EngineRef {
    *status = with_context("device " + std::to_string(index) + " cannot be opened", std::move(reason));
    return nullptr;
  };
  Status libraries = library_status();
  if (!libraries.ok()) return fail(libraries);
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (CUresult error = cuda().cuDeviceGet(&device, index)) return fail(cuda_status("cuDeviceGet", error));
  if (CUresult error = cuda().cuDevicePrimaryCtxRetain(&context, device)) {
    return fail(cuda_status("cuDevicePrimaryCtxRetain", error));
  }
  if (CUresult error = cuda().cuCtxSetCurrent(context)) {
    cuda().cuDevicePrimaryCtxRelease_v2(device);
    return fail(cuda_status("cuCtxSetCurrent", error));
  }
  auto engine = std::make_shared<Engine>(index, device, context, limits);
  Status opened = engine->open(ptx);
  Status started = engine->start();
  if (opened.ok() && !started.ok()) return fail(started);
  if (!opened.ok()) {
    // The driver may take its time over what was opened; nobody waits for that.
    if (started.ok()) engine->close(nullptr);
    return fail(opened);
  }
  *status = {};
  return engine;
}

void close_device(const EngineRef& engine, Completion done) { engine->close(std::move(done)); }

Stats stats(const EngineRef& engine) { return engine->stats(); }

std::vector<FlightRecord> flight_recorder(const EngineRef& engine) { return engine->recorder->read(); }

namespace {

// On the reclaimer's thread.
void free_unused(Allocator& allocator) {
  for (const Slab& slab : allocator.take_unused()) {
    cuda().cuMemFree_v2(slab.base);
    allocator.note_freed(slab);
  }
}

}  // namespace

// [Note: freeing memory] cuMemFree waits for the device, and may hold a lock of the driver meanwhile; if it waited for
// a collective that hangs, the engine thread could be caught in its next call, and nobody would abort the collective.
// So memory is freed while nothing is in flight, and the queue waits for that. A leaked communicator keeps the device
// busy for good: then nothing is given back any more.
void trim(const EngineRef& engine, Completion done) {
  auto work = std::make_shared<Work>("trim", no_timeout, std::move(done));
  auto is_freed = std::make_shared<std::atomic<bool>>(false);
  Engine* self = engine.get();
  engine->post(work, [self, work, is_freed, is_begun = false]() mutable {
    if (!is_begun && self->communicators.leaked() == 0) {
      if (!self->has_drained()) return Step::Again;
      is_begun = true;
      // The reclaimer's thread may be left behind, so it keeps the engine.
      self->reclaimer.post([engine = self->shared_from_this(), is_freed] {
        free_unused(*engine->allocator);
        *is_freed = true;
      });
    }
    if (is_begun && !*is_freed) return Step::Again;
    work->finish({});
    return Step::Done;
  });
}

void synchronize(const EngineRef& engine, int64_t timeout_ms, Completion done) {
  auto work = std::make_shared<Work>("synchronize", timeout_ms, std::move(done));
  Engine* self = engine.get();
  engine->post(work, [self, work] {
    Status deferred = self->take_deferred();
    if (!deferred.ok()) {
      work->finish(deferred);
      return Step::Done;
    }
    for (int stream = 0; stream < stream_count; stream++) {
      if (!self->has_room(static_cast<Stream>(stream))) return Step::Again;
    }
    auto marks = std::make_shared<std::vector<MarkRef>>();
    for (int stream = 0; stream < stream_count; stream++) {
      MarkRef mark;
      Status status = self->track(static_cast<Stream>(stream), nullptr, {}, &mark);
      if (!status.ok()) {
        work->finish(status);
        return Step::Done;
      }
      marks->push_back(mark);
    }
    // Those have copies that are not on their stream yet.
    auto transfers = std::make_shared<std::vector<WorkRef>>();
    for (const WorkRef& posted : self->posted_works()) {
      if (posted == work) break;
      if (posted->is_transfer) transfers->push_back(posted);
    }
    self->watch([work, marks, transfers] {
      if (work->is_finished()) return Step::Done;
      for (const MarkRef& mark : *marks) {
        if (!mark->is_known_passed()) return Step::Again;
      }
      for (const WorkRef& transfer : *transfers) {
        if (!transfer->is_finished()) return Step::Again;
      }
      work->finish({});
      return Step::Done;
    });
    return Step::Done;
  });
}

namespace {

// Gives up waiting when patience ends.
void trim_and_wait(const EngineRef& engine) {
  auto is_trimmed = std::make_shared<Latch>();
  trim(engine, [is_trimmed](const Status&) { is_trimmed->open(); });
  is_trimmed->wait(engine->limits.memory_patience_ms);
}

Status out_of_memory(const EngineRef& engine, size_t bytes) {
  Stats now = stats(engine);
  Status status = cuda_status("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  status.code = Code::OutOfMemory;
  status.message = "device " + std::to_string(engine->index) + " has no memory for " + std::to_string(bytes) +
                   " bytes: " + std::to_string(now.used_bytes) + " in use and " + std::to_string(now.reserved_bytes) +
                   " reserved here, " + std::to_string(now.free_bytes) + " of " + std::to_string(now.total_bytes) +
                   " free on the device; " + status.message;
  return status;
}

}  // namespace

BlockRef allocate(const EngineRef& engine, size_t bytes, Status* status) {
  auto make = [&](Chunk* chunk) { return std::make_shared<Block>(engine, engine->allocator, chunk, bytes); };
  *status = engine->condition();
  if (!status->ok()) return nullptr;
  cuda().cuCtxSetCurrent(engine->context);
  if (Chunk* chunk = engine->allocator->reuse(bytes)) return make(chunk);
  CUresult error;
  if (Chunk* chunk = engine->allocator->grow(bytes, &error)) return make(chunk);
  // What is in flight holds memory that its owners have released.
  double patience_ends = clock_ms() + engine->limits.memory_patience_ms;
  while (error == CUDA_ERROR_OUT_OF_MEMORY && engine->is_busy() && clock_ms() < patience_ends) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (Chunk* chunk = engine->allocator->reuse(bytes)) return make(chunk);
  }
  if (error == CUDA_ERROR_OUT_OF_MEMORY) {
    if (Chunk* chunk = engine->allocator->reuse(bytes)) return make(chunk);
    trim_and_wait(engine);
    if (Chunk* chunk = engine->allocator->grow(bytes, &error)) return make(chunk);
  }
  *status = error == CUDA_ERROR_OUT_OF_MEMORY ? out_of_memory(engine, bytes) : cuda_status("cuMemAlloc", error);
  return nullptr;
}

EngineRef engine_of(const BlockRef& block) { return block->engine; }
size_t bytes_of(const BlockRef& block) { return block->bytes; }

}  // namespace lockstep
