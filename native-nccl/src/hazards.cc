#include "hazards.h"

#include "library.h"

namespace lockstep {

namespace {

void keep_later(MarkRef* kept, const MarkRef& mark) {
  if (mark && (!*kept || (*kept)->sequence() < mark->sequence())) *kept = mark;
}

}  // namespace

void Waits::add(const MarkRef& mark) {
  if (mark && !mark->is_known_passed()) keep_later(&last_[mark->stream()], mark);
}

CUresult Waits::apply(Stream stream, CUstream handle) const {
#ifdef LOCKSTEP_MUTATE_NO_PRODUCER_WAIT
  (void)stream, (void)handle;
#else
  for (const MarkRef& mark : last_) {
    if (!mark || mark->stream() == stream) continue;
    if (CUresult error = cuda().cuStreamWaitEvent(handle, mark->event(), 0)) return error;
  }
#endif
  return CUDA_SUCCESS;
}

void Hazards::collect(bool is_write, Waits* waits) const {
  for (const MarkRef& mark : writes_) waits->add(mark);
  if (!is_write) return;
  for (const MarkRef& mark : reads_) waits->add(mark);
}

void Hazards::note(const MarkRef& mark, bool is_write) {
  if (!is_write) {
    reads_[mark->stream()] = mark;
    return;
  }
  // The write waited for all of these: who waits for it waits for them.
  reads_ = {};
  writes_ = {};
  writes_[mark->stream()] = mark;
}

void Hazards::add(const MarkRef& mark) { keep_later(&writes_[mark->stream()], mark); }

void Hazards::merge(const Hazards& other) {
  for (int stream = 0; stream < stream_count; stream++) {
    keep_later(&reads_[stream], other.reads_[stream]);
    keep_later(&writes_[stream], other.writes_[stream]);
  }
}

bool Hazards::is_clear() const {
  for (const auto& marks : {reads_, writes_}) {
    for (const MarkRef& mark : marks) {
      if (mark && mark->query() != CUDA_SUCCESS) return false;
    }
  }
  return true;
}

}  // namespace lockstep
