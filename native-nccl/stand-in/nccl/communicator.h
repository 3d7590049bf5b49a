// A communicator, and what the files of this stand-in do with it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../environment.h"
#include "../stand-in-cuda.h"
#include "transport.h"

// Never deleted, so that a use after the end is found and reported.
struct ncclComm {
  int size = 0, rank = 0, device = -1;
  std::string address;
  uint32_t id = 0;  // at the hub
  bool is_blocking = true;
  std::shared_ptr<stand_in::Connection> connection;  // written by init, before the state leaves ncclInProgress

  std::mutex mutex;
  std::condition_variable changed;
  int state = ncclSuccess;      // ncclInProgress, or the error that ended it
  bool is_aborted = false, is_gone = false;
  std::atomic<bool> is_finalized{false};
  int jobs = 0, in_flight = 0;  // threads that use it; operations on streams
  uint64_t launched = 0, finished = 0;  // operations, in the order of issue
  uint64_t collectives = 0;
  std::string last_error;
};

namespace stand_in {

using Comm = ncclComm;

// Keeps the words for ncclGetLastError, of the communicator (may be null) and of this thread. @returns `result`
int failure(Comm*, int result, const std::string& words);
// Where the communicator is null or was destroyed: reported, ncclInvalidArgument.
int check_alive(Comm*, const char* function);
// Also where something is in progress, or an error ended the communicator.
int check_ready(Comm*, const char* function);

struct PointToPoint {
  bool is_send;
  int peer;
  CUdeviceptr buffer;
  uint64_t count;
  int dtype;
};

// What one communicator does on one stream at once: a collective, or the sends and receives of a group.
struct Operation {
  Comm* comm;
  CUstream stream;
  const char* name;
  Header header;  // of a collective
  CUdeviceptr input = 0, output = 0;
  uint64_t input_bytes = 0, output_bytes = 0;
  std::vector<PointToPoint> transfers;  // not empty: no collective
  uint64_t number = 0;                  // of this operation in its communicator, from 0
  bool is_finished = false;
};

// operation.cc: puts it on its stream.
int launch(std::unique_ptr<Operation>);

// group.cc. Outside of a group what is given runs at once; in one it waits for the last ncclGroupEnd.
struct Job {
  Comm* comm;
  std::function<int()> run;
};
int submit(Job);
int submit(std::unique_ptr<Operation>);
// Of a call that failed: a group that contains it fails as a whole.
int refuse(int result);
bool is_in_group();
void end_with_group(Comm*, bool by_abort);

// lifetime.cc
void begin_abort(Comm*);
void end_abort(Comm*);
void destroy(Comm*);

}  // namespace stand_in

#define STANDIN_NCCL_CALL(function) \
  if (const int forced_ = stand_in::forced_result("STANDIN_NCCL_FAIL", #function)) return refuse(forced_)
