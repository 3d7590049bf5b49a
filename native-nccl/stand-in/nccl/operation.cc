// An operation on a stream: what NCCL's kernel would do.
#include <unistd.h>

#include <cstdio>

#include "communicator.h"

namespace stand_in {

static void finish(Operation& operation) {
  Comm* comm = operation.comm;
  std::lock_guard<std::mutex> lock(comm->mutex);
  if (operation.is_finished) return;
  operation.is_finished = true;
  comm->finished++;
  comm->in_flight--;
  comm->changed.notify_all();
}

// What an aborted operation leaves in its output is undefined; here it is no number.
static void spoil(void* output, uint64_t bytes) {
  if (output && bytes) std::memset(output, 0xFF, bytes);
}

// The error becomes the communicator's, and the operation hangs until the communicator is aborted.
static void hang_with(Comm* comm, int result, const std::string& words) {
  {
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (comm->state == ncclSuccess || comm->state == ncclInProgress) {
      comm->state = result;
      comm->last_error = words;
    }
  }
  comm->connection->wait_for_close();
}

static void hang(Comm* comm) {
  std::string words;
  const int result = comm->connection->error(&words);
  if (result) hang_with(comm, result, words);
  else comm->connection->wait_for_close();
}

// STANDIN_NCCL_HANG_SEQUENCE and STANDIN_NCCL_ASYNC_ERROR. @returns whether the operation is over
static bool is_struck(const Operation& operation) {
  Comm* comm = operation.comm;
  const long number_here = static_cast<long>(operation.number);
  if (number("STANDIN_NCCL_HANG_SEQUENCE", -1) == number_here && number("STANDIN_NCCL_HANG_RANK", 0) == comm->rank) {
    comm->connection->wait_for_close();
    return true;
  }
  int result = 0, rank = -1;
  long sequence = 0;
  const int fields = std::sscanf(text("STANDIN_NCCL_ASYNC_ERROR").c_str(), "%d:%ld:%d", &result, &sequence, &rank);
  if (fields < 1 || sequence != number_here || (rank >= 0 && rank != comm->rank)) return false;
  hang_with(comm, result, "an asynchronous error that was asked for");
  return true;
}

// Operations of one communicator follow each other, on whatever streams they are. @returns false after abort
static bool wait_for_turn(const Operation& operation) {
  Comm* comm = operation.comm;
  std::unique_lock<std::mutex> lock(comm->mutex);
  comm->changed.wait(lock, [&] { return comm->is_aborted || comm->finished == operation.number; });
  return !comm->is_aborted;
}

static bool run_collective(Operation& operation, void** host) {
  Comm* comm = operation.comm;
  Header& header = operation.header;
  header.ticket = comm->connection->next_ticket();
  header.bytes = operation.input_bytes;
  Message answer;
  if (!comm->connection->send(header, host[0])) return false;
  if (comm->connection->wait(header.ticket, &answer) != Connection::Outcome::Answered) return false;
  if (!answer.payload.empty()) std::memcpy(host[1], answer.payload.data(), answer.payload.size());
  return true;
}

static bool run_transfers(Operation& operation, void** host) {
  Connection& connection = *operation.comm->connection;
  std::vector<uint32_t> tickets;
  for (size_t i = 0; i < operation.transfers.size(); i++) {
    const PointToPoint& transfer = operation.transfers[i];
    Header header;
    header.kind = transfer.is_send ? Kind::Send : Kind::Receive;
    header.ticket = connection.next_ticket();
    header.peer = transfer.peer;
    header.count = transfer.count;
    header.dtype = transfer.dtype;
    header.bytes = transfer.is_send ? transfer.count * size_of(transfer.dtype) : 0;
    tickets.push_back(header.ticket);
    if (!connection.send(header, host[i])) return false;
  }
  for (size_t i = 0; i < tickets.size(); i++) {
    Message answer;
    if (connection.wait(tickets[i], &answer) != Connection::Outcome::Answered) return false;
    if (!answer.payload.empty()) std::memcpy(host[i], answer.payload.data(), answer.payload.size());
  }
  return true;
}

static int run(void* data, void** host) {
  Operation& operation = *static_cast<Operation*>(data);
  Comm* comm = operation.comm;
  bool is_done = false;
  if (wait_for_turn(operation)) {
    if (const long delay = number("STANDIN_NCCL_OP_DELAY_US", 0)) usleep(delay);
    if (!is_struck(operation)) {
      is_done = operation.transfers.empty() ? run_collective(operation, host) : run_transfers(operation, host);
      if (!is_done) hang(comm);
    }
  }
  if (!is_done && operation.transfers.empty()) spoil(host[1], operation.output_bytes);
  for (size_t i = 0; !is_done && i < operation.transfers.size(); i++) {
    const PointToPoint& transfer = operation.transfers[i];
    if (!transfer.is_send) spoil(host[i], transfer.count * size_of(transfer.dtype));
  }
  finish(operation);
  return CUDA_SUCCESS;
}

static void drop(void* data) {
  finish(*static_cast<Operation*>(data));
  delete static_cast<Operation*>(data);
}

int launch(std::unique_ptr<Operation> operation) {
  Comm* comm = operation->comm;
  std::vector<StandInRange> ranges;
  if (operation->transfers.empty()) {
    ranges = {{operation->input, operation->input_bytes, 0}, {operation->output, operation->output_bytes, 1}};
  }
  for (const PointToPoint& transfer : operation->transfers) {
    ranges.push_back({transfer.buffer, transfer.count * size_of(transfer.dtype), !transfer.is_send});
  }
  {
    std::lock_guard<std::mutex> lock(comm->mutex);
    comm->in_flight++;
  }
  const CUstream stream = operation->stream;
  const char* name = operation->name;
  const int result = standin_cuda_enqueue(stream, name, ranges.data(), static_cast<int>(ranges.size()), run,
                                          operation.release(), drop);
  if (!result) return ncclSuccess;
  return failure(comm, ncclUnhandledCudaError, "Cuda failure " + std::to_string(result) + " when launching " + name);
}

}  // namespace stand_in
