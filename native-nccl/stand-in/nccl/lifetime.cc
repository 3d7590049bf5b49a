// How communicators end, and what can be asked of them.
#include <unistd.h>

#include <thread>

#include "communicator.h"

namespace stand_in {

static thread_local std::string thread_error;
static const char InProgressWords[] =
    "Attempt to use communicator before the previous operation returned ncclSuccess";

int failure(Comm* comm, int result, const std::string& words) {
  thread_error = words;
  if (comm) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    comm->last_error = words;
  }
  return result;
}

int check_alive(Comm* comm, const char* function) {
  const std::string name = function;
  if (!comm) return failure(nullptr, ncclInvalidArgument, name + " : comm argument is NULL");
  {
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (!comm->is_gone) return ncclSuccess;
  }
  report("USE-AFTER-DESTROY", name);
  return failure(nullptr, ncclInvalidArgument, name + " : comm argument is corrupted, or was destroyed before");
}

static int take_connection_error(Comm* comm) {
  std::string words;
  std::unique_lock<std::mutex> lock(comm->mutex);
  if (comm->state || !comm->connection) return comm->state;
  if (const int error = comm->connection->error(&words)) {
    comm->state = error;
    comm->last_error = words;
  }
  return comm->state;
}

int check_ready(Comm* comm, const char* function) {
  if (const int bad = check_alive(comm, function)) return bad;
  const int state = take_connection_error(comm);
  if (state == ncclInProgress) {
    return failure(comm, ncclInvalidArgument, InProgressWords);
  }
  // The words of the error that ended it are there already.
  if (state) return state;
  if (!comm->is_finalized) return ncclSuccess;
  return failure(comm, ncclInvalidUsage, std::string(function) + " : comm was finalized before");
}

void begin_abort(Comm* comm) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  comm->is_aborted = true;
  if (comm->connection) comm->connection->close();
  comm->changed.notify_all();
}

void end_abort(Comm* comm) {
  usleep(number("STANDIN_NCCL_ABORT_HANG_MS", 0) * 1000);
  {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->changed.wait(lock, [&] { return !comm->jobs; });
  }
  // Its memory is given back, and that waits for the device: for all that runs there, of other communicators too.
  standin_cuda_wait_device(comm->device);
  std::lock_guard<std::mutex> lock(comm->mutex);
  comm->is_gone = true;
}

void destroy(Comm* comm) {
  std::unique_lock<std::mutex> lock(comm->mutex);
  comm->changed.wait(lock, [&] { return !comm->jobs && !comm->in_flight; });
  comm->is_gone = true;
  auto connection = comm->connection;
  lock.unlock();
  if (connection) connection->close();
}

static int finalize(Comm* comm) {
  std::unique_lock<std::mutex> lock(comm->mutex);
  comm->changed.wait(lock, [&] { return comm->is_aborted || !comm->in_flight; });
  return ncclSuccess;
}

template <class Ask>
static int ask(Comm* comm, const char* function, Ask answer) {
  if (const int bad = check_ready(comm, function)) return bad;
  answer();
  return ncclSuccess;
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT ncclResult_t ncclGetVersion(int* version) {
  STANDIN_NCCL_CALL(ncclGetVersion);
  *version = static_cast<int>(number("STANDIN_NCCL_VERSION", 22809));
  return ncclSuccess;
}

STANDIN_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const words[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
  };
  return result >= ncclSuccess && result <= ncclInProgress ? words[result] : "unknown result code";
}

STANDIN_EXPORT const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string words;
  words = thread_error;
  if (comm) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (!comm->last_error.empty()) words = comm->last_error;
  }
  return words.c_str();
}

STANDIN_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  STANDIN_NCCL_CALL(ncclCommAbort);
  if (!comm) return ncclSuccess;
  if (const int bad = check_alive(comm, "ncclCommAbort")) return refuse(bad);
  if (is_in_group()) {
    end_with_group(comm, true);
    return ncclSuccess;
  }
  begin_abort(comm);
  end_abort(comm);
  return ncclSuccess;
}

STANDIN_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  STANDIN_NCCL_CALL(ncclCommDestroy);
  if (!comm) return ncclSuccess;
  if (const int bad = check_alive(comm, "ncclCommDestroy")) return refuse(bad);
  if (take_connection_error(comm) == ncclInProgress) {
    return refuse(failure(comm, ncclInvalidArgument, InProgressWords));
  }
  if (is_in_group()) end_with_group(comm, false);
  else destroy(comm);
  return ncclSuccess;
}

STANDIN_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  STANDIN_NCCL_CALL(ncclCommFinalize);
  if (const int bad = check_ready(comm, "ncclCommFinalize")) return refuse(bad);
  comm->is_finalized = true;
  return submit(Job{comm, [comm] { return finalize(comm); }});
}

STANDIN_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  STANDIN_NCCL_CALL(ncclCommGetAsyncError);
  if (const int bad = check_alive(comm, "ncclCommGetAsyncError")) return bad;
  *error = take_connection_error(comm);
  return ncclSuccess;
}

STANDIN_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  STANDIN_NCCL_CALL(ncclCommCount);
  return ask(comm, "ncclCommCount", [&] { *count = comm->size; });
}

STANDIN_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  STANDIN_NCCL_CALL(ncclCommUserRank);
  return ask(comm, "ncclCommUserRank", [&] { *rank = comm->rank; });
}

STANDIN_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  STANDIN_NCCL_CALL(ncclCommCuDevice);
  return ask(comm, "ncclCommCuDevice", [&] { *device = comm->device; });
}
