// Streams: a thread each, or one for a whole device.
#include <unistd.h>

#include <thread>

#include "driver.h"

namespace stand_in {

static void work_off(std::shared_ptr<Worker> worker) {
  Driver& state = driver();
  for (;;) {
    std::shared_ptr<Stream> stream;
    Work work;
    {
      Lock lock(state.mutex);
      worker->has_work.wait(lock, [&] { return worker->ends || !worker->queue.empty(); });
      if (worker->queue.empty()) return;
      std::tie(stream, work) = std::move(worker->queue.front());
      worker->queue.pop_front();
    }
    if (const long jitter = number("STANDIN_CUDA_JITTER_US", 0)) usleep(worker->random() % jitter);
    std::atomic<int>& sticky = state.devices[stream->device].sticky;
    const CUresult result = sticky.load() ? CUDA_SUCCESS : work.run();
    int none = 0;
    if (result) sticky.compare_exchange_strong(none, result);
    // What the work holds is let go before anybody can see that it has finished.
    work = {};
    {
      Lock lock(state.mutex);
      stream->finished++;
    }
    state.changed.notify_all();
  }
}

static std::shared_ptr<Worker> start_worker(unsigned seed) {
  auto worker = std::make_shared<Worker>();
  worker->random.seed(static_cast<unsigned>(number("STANDIN_CUDA_SEED", 1)) * 7919 + seed);
  std::thread(work_off, worker).detach();
  return worker;
}

std::shared_ptr<Stream> find_stream(CUstream handle) {
  auto found = driver().streams.find(reinterpret_cast<uint64_t>(handle));
  return found == driver().streams.end() || found->second->is_destroyed ? nullptr : found->second;
}

void push(const std::shared_ptr<Stream>& stream, Work work) {
  stream->enqueued++;
  stream->worker->queue.emplace_back(stream, std::move(work));
  stream->worker->has_work.notify_one();
}

CUresult wait_for(Lock& lock, const std::vector<std::shared_ptr<Stream>>& streams, int device) {
  Driver& state = driver();
  struct Target {
    std::shared_ptr<Stream> stream;
    uint64_t enqueued;
    VectorClock clock;
  };
  std::vector<Target> targets;
  for (auto& stream : streams) targets.push_back({stream, stream->enqueued, stream->clock});
  std::atomic<int>& sticky = state.devices[device].sticky;
  for (auto& target : targets) {
    state.changed.wait(lock, [&] { return target.stream->finished >= target.enqueued || sticky.load(); });
    if (sticky.load()) break;
    join(state.host, target.clock);
  }
  return sticky.load();
}

CUresult wait_for_device(Lock& lock, int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (auto& [handle, stream] : driver().streams) {
    if (stream->device == device) streams.push_back(stream);
  }
  const CUresult result = wait_for(lock, streams, device);
  // A destroyed stream is kept until its work is done.
  for (auto it = driver().streams.begin(); it != driver().streams.end();) {
    const Stream& stream = *it->second;
    it = stream.is_destroyed && stream.finished == stream.enqueued ? driver().streams.erase(it) : std::next(it);
  }
  return result;
}

void destroy(Stream& stream) {
  stream.is_destroyed = true;
  if (stream.worker == driver().devices[stream.device].serial_worker) return;
  stream.worker->ends = true;
  stream.worker->has_work.notify_one();
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT int standin_cuda_stream_device(CUstream handle) {
  Lock lock(driver().mutex);
  auto stream = find_stream(handle);
  return stream ? stream->device : -1;
}

STANDIN_EXPORT void standin_cuda_wait_device(int device) {
  Lock lock(driver().mutex);
  wait_for_device(lock, device);
}

static CUresult create(CUstream* handle) {
  Driver& state = driver();
  Lock lock(state.mutex);
  auto stream = std::make_shared<Stream>();
  stream->device = current_device();
  stream->entity = state.next_entity++;
  if (text("STANDIN_CUDA_STREAMS") == "serial") {
    auto& shared = state.devices[stream->device].serial_worker;
    if (!shared) shared = start_worker(stream->entity);
    stream->worker = shared;
  } else {
    stream->worker = start_worker(stream->entity);
  }
  state.next_handle += 16;
  state.streams[state.next_handle] = stream;
  *handle = reinterpret_cast<CUstream>(state.next_handle);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuStreamCreate(CUstream* handle, unsigned) {
  STANDIN_CONTEXT_CALL(cuStreamCreate);
  return create(handle);
}

STANDIN_EXPORT CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned, int) {
  STANDIN_CONTEXT_CALL(cuStreamCreateWithPriority);
  return create(handle);
}

STANDIN_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  STANDIN_CONTEXT_CALL(cuStreamDestroy_v2);
  Driver& state = driver();
  Lock lock(state.mutex);
  auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  destroy(*stream);
  if (stream->finished == stream->enqueued) state.streams.erase(reinterpret_cast<uint64_t>(handle));
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuStreamQuery(CUstream handle) {
  STANDIN_CALL(cuStreamQuery);
  Lock lock(driver().mutex);
  auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const int sticky = driver().devices[stream->device].sticky.load()) return sticky;
  if (stream->finished < stream->enqueued) return CUDA_ERROR_NOT_READY;
  join(driver().host, stream->clock);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  STANDIN_CONTEXT_CALL(cuStreamSynchronize);
  Lock lock(driver().mutex);
  auto stream = find_stream(handle);
  return stream ? wait_for(lock, {stream}, stream->device) : CUDA_ERROR_INVALID_HANDLE;
}
