// Events count how often they were recorded; a wait is for the record that was the last when it was enqueued.
#include "driver.h"

namespace stand_in {

enum { CreateDisableTiming = CU_EVENT_DISABLE_TIMING };

static std::shared_ptr<Event> find_event(CUevent handle) {
  auto found = driver().events.find(reinterpret_cast<uint64_t>(handle));
  return found == driver().events.end() ? nullptr : found->second;
}

static CUresult sticky_of(int device) { return driver().devices[device].sticky.load(); }

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  STANDIN_CONTEXT_CALL(cuEventCreate);
  Driver& state = driver();
  Lock lock(state.mutex);
  auto event = std::make_shared<Event>();
  event->device = current_device();
  event->has_timing = !(flags & CreateDisableTiming);
  state.next_handle += 16;
  state.events[state.next_handle] = event;
  *handle = reinterpret_cast<CUevent>(state.next_handle);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  STANDIN_CONTEXT_CALL(cuEventDestroy_v2);
  Lock lock(driver().mutex);
  return driver().events.erase(reinterpret_cast<uint64_t>(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

STANDIN_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  STANDIN_CONTEXT_CALL(cuEventRecord);
  Driver& state = driver();
  Lock lock(state.mutex);
  auto stream = find_stream(stream_handle);
  auto event = find_event(handle);
  if (!stream || !event || stream->device != event->device) return CUDA_ERROR_INVALID_HANDLE;
  join(stream->clock, state.host);
  if (stream->clock.size() <= stream->entity) stream->clock.resize(stream->entity + 1);
  event->clock = stream->clock;
  const uint64_t record = ++event->recorded;
  Work work;
  work.run = [event, record]() -> CUresult {
    Lock lock(driver().mutex);
    if (event->done < record) {
      event->done = record;
      event->time = std::chrono::steady_clock::now();
    }
    return CUDA_SUCCESS;
  };
  push(stream, std::move(work));
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned) {
  STANDIN_CONTEXT_CALL(cuStreamWaitEvent);
  Driver& state = driver();
  Lock lock(state.mutex);
  auto stream = find_stream(stream_handle);
  auto event = find_event(handle);
  if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
  // As in CUDA: an event that was never recorded is one that has happened.
  if (!event->recorded) return CUDA_SUCCESS;
  join(stream->clock, event->clock);
  Work work;
  work.run = [event, record = event->recorded]() -> CUresult {
    Lock lock(driver().mutex);
    driver().changed.wait(lock, [&] { return event->done >= record || sticky_of(event->device); });
    return CUDA_SUCCESS;
  };
  push(stream, std::move(work));
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuEventQuery(CUevent handle) {
  STANDIN_CALL(cuEventQuery);
  Lock lock(driver().mutex);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult sticky = sticky_of(event->device)) return sticky;
  if (event->done < event->recorded) return CUDA_ERROR_NOT_READY;
  join(driver().host, event->clock);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  STANDIN_CONTEXT_CALL(cuEventSynchronize);
  Lock lock(driver().mutex);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  const VectorClock clock = event->clock;
  const uint64_t record = event->recorded;
  driver().changed.wait(lock, [&] { return event->done >= record || sticky_of(event->device); });
  if (const CUresult sticky = sticky_of(event->device)) return sticky;
  join(driver().host, clock);
  return CUDA_SUCCESS;
}

STANDIN_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent first_handle, CUevent second_handle) {
  STANDIN_CONTEXT_CALL(cuEventElapsedTime);
  Lock lock(driver().mutex);
  auto first = find_event(first_handle), second = find_event(second_handle);
  for (auto& event : {first, second}) {
    if (!event || !event->has_timing || !event->recorded) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (first->done < first->recorded || second->done < second->recorded) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(second->time - first->time).count();
  return CUDA_SUCCESS;
}
