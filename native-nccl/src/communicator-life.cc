// How communicators begin and end: init, split, abort, destroy.
#include <cstring>
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

ncclConfig218 non_blocking_config() {
  ncclConfig218 config;
  config.size = sizeof config;
  config.magic = static_cast<unsigned>(NCCL_CONFIG_MAGIC);
  config.version = NCCL_CONFIG_VERSION;
  config.blocking = 0;
  config.cgaClusterSize = config.minCTAs = config.maxCTAs = config.splitShare = NCCL_CONFIG_UNDEFINED;
  config.netName = nullptr;
  return config;
}

// The work's own completion, with the communicator where it went well.
Completion with_communicator(CommCompletion done, std::shared_ptr<CommRef> made) {
  return [done = std::move(done), made](const Status& status) { done(status, status.ok() ? *made : nullptr); };
}

Step poll_init(Engine& engine, const WorkRef& work) {
  const CommRef& communicator = work->communicator;
  if (communicator->state != Communicator::Initialising) return Step::Done;
  Status status;
  if (Communicators::poll(*communicator, &status) == ncclInProgress) return Step::Again;
  if (status.ok()) {
    communicator->state = Communicator::Ready;
    work->finish({});
  } else {
    engine.communicators.fail(communicator, with_context(work->what(), status), work);
  }
  return Step::Done;
}

// Collective over the parent, so it keeps its place in the queue to the end.
class Split {
 public:
  Split(WorkRef work, int color, int key, std::shared_ptr<CommRef> made)
      : work_(std::move(work)), color_(color), key_(key), made_(std::move(made)), engine_(*parent().engine) {}

  Step step() {
    if (parent().state != Communicator::Ready) {
      work_->finish(with_context(work_->what(), parent().why));
      return Step::Done;
    }
    if (!is_begun_) {
      if (parent().in_flight) return Step::Again;
      ncclConfig218 config = non_blocking_config();
      ncclResult_t result = nccl().ncclCommSplit(parent().handle, color_, key_, &child().handle, &config);
      if (is_failure(result)) return fail(nccl_status("ncclCommSplit", result, parent().handle));
      is_begun_ = parent().is_launching = true;
    }
    return work_->is_child_there ? poll_child() : poll_parent();
  }

 private:
  Communicator& parent() const { return *work_->communicator; }
  Communicator& child() const { return *work_->child; }

  // NCCL writes the child's handle on a thread of its own; it is not to be read before the parent leaves
  // ncclInProgress.
  Step poll_parent() {
    Status status;
    if (Communicators::poll(parent(), &status) == ncclInProgress) return Step::Again;
    if (!status.ok()) return fail(status);
    if (child().handle) {
      work_->is_child_there = true;
      engine_.communicators.add(work_->child);
      return poll_child();
    }
    if (color_ >= 0) return fail(make_status(Code::Nccl, "ncclCommSplit made no communicator"));
    return finish(nullptr);
  }

  Step poll_child() {
    Status status;
    if (Communicators::poll(child(), &status) == ncclInProgress) return Step::Again;
    const char* call = "ncclCommCount";
    ncclResult_t result = ncclSuccess;
    if (status.ok()) result = nccl().ncclCommCount(child().handle, &child().size);
    if (status.ok() && result == ncclSuccess) {
      call = "ncclCommUserRank";
      result = nccl().ncclCommUserRank(child().handle, &child().rank);
    }
    if (result != ncclSuccess) status = nccl_status(call, result, child().handle);
    if (!status.ok()) return fail(status);
    child().state = Communicator::Ready;
    return finish(work_->child);
  }

  Step finish(CommRef made) {
    parent().is_launching = false;
    *made_ = std::move(made);
    work_->finish({});
    return Step::Done;
  }

  // Parent and child: ranks that disagree on whether there is a child cannot go on.
  Step fail(const Status& status) {
    engine_.communicators.fail(work_->communicator, with_context(work_->what(), status), work_);
    return Step::Done;
  }

  const WorkRef work_;
  const int color_, key_;
  const std::shared_ptr<CommRef> made_;
  Engine& engine_;
  bool is_begun_ = false;
};

}  // namespace

void comm_init(const EngineRef& engine, const InitOptions& options, CommCompletion done) {
  auto communicator = std::make_shared<Communicator>(engine, options.name);
  communicator->rank = options.rank;
  communicator->size = options.size;
  auto made = std::make_shared<CommRef>(communicator);
  std::string what = "init of " + communicator->describe();
  auto work = std::make_shared<Work>(what, options.timeout_ms, with_communicator(std::move(done), made));
  work->communicator = communicator;
  ncclUniqueId id;
  std::memcpy(id.internal, options.id, sizeof id.internal);
  Engine* self = engine.get();
  engine->post(work, [self, work, id] {
    Communicator& begun = *work->communicator;
    ncclConfig218 config = non_blocking_config();
    self->communicators.add(work->communicator);
    ncclResult_t result = nccl().ncclCommInitRankConfig(&begun.handle, begun.size, id, begun.rank, &config);
    if (is_failure(result) || !begun.handle) {
      Status status = nccl_status("ncclCommInitRankConfig", result, nullptr);
      self->communicators.fail(work->communicator, with_context(work->what(), status), work);
    } else {
      // Beside the queue: ranks may begin their communicators in different orders.
      self->watch([self, work] { return poll_init(*self, work); });
    }
    return Step::Done;
  });
}

void comm_split(const CommRef& parent, int color, int key, int64_t timeout_ms, std::string name, CommCompletion done) {
  auto made = std::make_shared<CommRef>();
  std::string what = "split of " + parent->describe() + " into " + name;
  auto work = std::make_shared<Work>(what, timeout_ms, with_communicator(std::move(done), made));
  work->communicator = parent;
  work->child = std::make_shared<Communicator>(parent->engine, std::move(name));
  auto split = std::make_shared<Split>(work, color, key, made);
  parent->engine->post(work, [split] { return split->step(); });
}

void comm_abort(const std::vector<CommRef>& communicators, const std::string& reason) {
  std::vector<CommRef> left = communicators;
  while (!left.empty()) {
    // All of one device together.
    EngineRef engine = left.front()->engine;
    std::vector<CommRef> here, elsewhere;
    for (const CommRef& communicator : left) {
      (communicator->engine == engine ? here : elsewhere).push_back(communicator);
    }
    left.swap(elsewhere);
    engine->post_urgent([here, reason, self = engine.get()] {
      for (const CommRef& communicator : here) {
        Status why = make_status(Code::Aborted, "the communicator was aborted: " + reason);
        self->communicators.fail(communicator, why, nullptr);
      }
    });
  }
}

namespace {

// Ends the work when the communicator is dead, by whatever way.
void finish_when_dead(Engine& engine, const WorkRef& work, const CommRef& communicator) {
  engine.watch([work, communicator] {
    if (communicator->state != Communicator::Dead) return Step::Again;
    const Status& end = communicator->end;
    work->finish(end.ok() ? end : with_context(work->what(), end));
    return Step::Done;
  });
}

// ncclCommDestroy frees memory, which waits for the device.
void destroy_finalized(Engine& engine, const CommRef& communicator) {
  communicator->state = Communicator::Destroying;
  auto result = std::make_shared<ncclResult_t>(ncclSuccess);
  auto call = [handle = communicator->handle, result] { *result = nccl().ncclCommDestroy(handle); };
  auto helper = std::make_shared<HelperCall>(engine.context, call, engine.limits.abort_ms);
  engine.watch([&engine, communicator, helper, result] {
    const bool has_returned = helper->has_returned();
    if (!has_returned && !helper->is_expired()) return Step::Again;
    if (has_returned) {
      // Whatever it said, the handle may be used no more.
      communicator->handle = nullptr;
      if (is_failure(*result)) communicator->end = nccl_status("ncclCommDestroy", *result, nullptr);
    } else {
      communicator->end = helper->why_expired();
      engine.communicators.leak(1);
    }
    communicator->state = Communicator::Dead;
    engine.communicators.remove(communicator);
    return Step::Done;
  });
}

void finalize(Engine& engine, const CommRef& communicator, double deadline) {
  communicator->state = Communicator::Finalizing;
  communicator->why = make_status(Code::Closed, "the communicator was destroyed");
  ncclResult_t result = nccl().ncclCommFinalize(communicator->handle);
  if (is_failure(result)) {
    engine.communicators.fail(communicator, nccl_status("ncclCommFinalize", result, communicator->handle), nullptr);
    return;
  }
  engine.watch([&engine, communicator, deadline] {
    if (communicator->state != Communicator::Finalizing) return Step::Done;
    Status status;
    ncclResult_t polled = Communicators::poll(*communicator, &status);
    if (polled == ncclInProgress && clock_ms() < deadline) return Step::Again;
    if (polled == ncclSuccess) destroy_finalized(engine, communicator);
    else engine.communicators.fail(communicator, communicator->why, nullptr);
    return Step::Done;
  });
}

}  // namespace

void comm_destroy(const CommRef& communicator, int64_t timeout_ms, Completion done) {
  auto work = std::make_shared<Work>("destroy of " + communicator->describe(), no_timeout, std::move(done));
  Engine* engine = communicator->engine.get();
  engine->post(work, [engine, work, communicator, deadline = deadline_after(timeout_ms)] {
    if (communicator->state == Communicator::Ready && !communicator->in_flight && !communicator->is_launching) {
      finalize(*engine, communicator, deadline);
    } else if (communicator->state != Communicator::Finalizing) {
      Status why = make_status(Code::Closed, "the communicator was destroyed while it was in use");
      engine->communicators.fail(communicator, why, nullptr);
    }
    finish_when_dead(*engine, work, communicator);
    return Step::Done;
  });
}

}  // namespace lockstep
