// The engine thread: what it does in one round, and when it sleeps.
#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

// Between polls of the device with nothing to do; the first is about what a small collective takes.
constexpr double shortest_backoff_us = 20, longest_backoff_us = 1000;
// With nothing in flight the thread only shows that it is alive.
constexpr auto heartbeat_interval = std::chrono::milliseconds(50);
constexpr double sweep_interval_ms = 1;
// Then the device is polled again, however full the queue is.
constexpr int steps_per_round = 64;

}  // namespace

Status Engine::start() {
  try {
    reclaimer.start(context);
    std::thread([engine = shared_from_this()] { engine->watch_over(); }).detach();
    std::thread([engine = shared_from_this()] { engine->run(); }).detach();
    return {};
  } catch (const std::system_error& error) {
    {
      // For those that were started. Not clean, so what is to be freed is left to this thread.
      std::lock_guard<std::mutex> lock(mutex_);
      is_accepting_ = false;
      has_thread_ended_ = true;
      closing_.notify_all();
    }
    reclaimer.stop();
    free_all();
    return make_status(Code::Unavailable, std::string("the process can have no more threads: ") + error.what());
  }
}

void Engine::watch_over() {
  answer_overdue();
  finish_closing();
}

void Engine::run() {
  cuda().cuCtxSetCurrent(context);
  while (!has_ended()) {
    bool has_progressed = run_urgent();
    has_progressed = run_queue() || has_progressed;
    has_progressed = poll_flights() || has_progressed;
    has_progressed = run_jobs() || has_progressed;
    communicators.poll_async_errors();
    finish_expired();
    communicators.start_aborts();
    wait_for_work(has_progressed);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  has_thread_ended_ = true;
  is_clean_ = jobs_.empty() && communicators.leaked() == 0 && lost_.ok() && has_drained();
  changed_.notify_all();
}

bool Engine::run_urgent() {
  std::deque<std::function<void()>> actions;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    actions.swap(urgent_);
  }
  for (auto& action : actions) action();
  return !actions.empty();
}

bool Engine::run_queue() {
  for (int count = 0; count < steps_per_round; count++) {
    Command* head;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (queue_.empty()) return count > 0;
      head = &queue_.front();  // stays where it is: others only add at the end
    }
    if (!run_step(*head)) return count > 0;
    Command done;  // dropped without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    done = std::move(queue_.front());
    queue_.pop_front();
  }
  return true;
}

// True: the command is done with.
bool Engine::run_step(Command& command) {
  if (command.work && command.work->is_finished()) return true;
  if (is_lost()) {
    if (command.work) command.work->finish(condition());
    return true;
  }
  return command.step() == Step::Done;
}

bool Engine::poll_flights() {
  bool has_progressed = false;
  for (auto& flights : flights_) {
    while (!flights.empty()) {
      CUresult result = flights.front().mark->query();
      if (result == CUDA_ERROR_NOT_READY) break;
      if (result) {
        // What an event says is the error of something on the device: the context does not survive it.
        Status status = with_context("a command failed on the device", cuda_status("cuEventQuery", result));
        status.is_device_lost = true;
        lose(status);
      }
      Flight flight = std::move(flights.front());
      flights.pop_front();
      has_progressed = true;
      if (!flight.work) continue;
      if (flight.work->communicator) flight.work->communicator->in_flight--;
      flight.work->finish(result ? condition() : Status{});
    }
  }
  return has_progressed;
}

bool Engine::run_jobs() {
  bool has_progressed = false;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if ((*job)() == Step::Again) {
      ++job;
      continue;
    }
    job = jobs_.erase(job);
    has_progressed = true;
  }
  return has_progressed;
}

void Engine::finish_expired() {
  double now = clock_ms();
  if (now < next_sweep_ms_) return;
  next_sweep_ms_ = now + sweep_interval_ms;
  for (const WorkRef& work : unfinished_works()) {
    if (!work->is_expired(now) || work->is_finished()) continue;
    if (work->communicator) communicators.fail(work->communicator, work->timeout_status(), work);
    work->finish(work->timeout_status());
  }
  std::vector<WorkRef> finished;  // dropped without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  auto middle = std::stable_partition(works_.begin(), works_.end(), [](const WorkRef& w) { return !w->is_finished(); });
  std::move(middle, works_.end(), std::back_inserter(finished));
  works_.erase(middle, works_.end());
}

void Engine::wait_for_work(bool has_progressed) {
  size_t in_flight = jobs_.size();
  for (const auto& flights : flights_) in_flight += flights.size();
  std::unique_lock<std::mutex> lock(mutex_);
  heartbeat_++;
  in_flight_ = in_flight;
  is_busy_ = in_flight > 0 || !queue_.empty() || !urgent_.empty();
  if (has_progressed) {
    backoff_us_ = shortest_backoff_us;
    return;
  }
  if (!urgent_.empty()) return;
  if (!is_busy_ && !is_closing_) {
    changed_.wait_for(lock, heartbeat_interval, [this] { return !queue_.empty() || !urgent_.empty(); });
    return;
  }
  // A command may wait at the head; one that comes in behind it changes nothing.
  size_t queued = queue_.size();
  auto is_new = [&] { return !urgent_.empty() || (queued == 0 && !queue_.empty()); };
  changed_.wait_for(lock, std::chrono::duration<double, std::micro>(backoff_us_), is_new);
  backoff_us_ = std::min(2 * backoff_us_, longest_backoff_us);
}

}  // namespace lockstep
