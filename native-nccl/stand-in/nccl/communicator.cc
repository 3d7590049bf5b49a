// Unique ids, and how communicators begin: by one of those, or by splitting another.
#include <time.h>
#include <unistd.h>

#include <thread>

#include "communicator.h"
#include "hub.h"

extern "C" CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);

namespace stand_in {

// At the beginning of a unique id of this library; then comes the hub's address.
static const char IdMark[] = "STND";
static const size_t IdMarkBytes = 4;

static std::shared_ptr<Connection> dial(Comm* comm) {
  const long tries = number("STANDIN_NCCL_CONNECT_MS", 1000) / 5 + 1;
  for (long i = 0; i < tries; i++) {
    if (auto connection = Connection::open(comm->address)) return connection;
    {
      std::lock_guard<std::mutex> lock(comm->mutex);
      if (comm->is_aborted) return nullptr;
    }
    usleep(5000);
  }
  return nullptr;
}

// Says hello to the hub and waits for all others: for ever, where one does not come, until the communicator is aborted.
static int join_world(Comm* comm) {
  auto connection = dial(comm);
  if (!connection) return failure(comm, ncclSystemError, "cannot connect to the root of this unique id");
  bool is_aborted;
  {
    std::lock_guard<std::mutex> lock(comm->mutex);
    comm->connection = connection;
    is_aborted = comm->is_aborted;
  }
  if (is_aborted) connection->close();
  Header hello;
  hello.kind = Kind::Hello;
  hello.communicator = comm->id;
  hello.ticket = connection->next_ticket();
  hello.rank = comm->rank;
  hello.size = comm->size;
  hello.device = comm->device;
  CUuuid uuid;
  cuDeviceGetUuid_v2(&uuid, comm->device);
  std::memcpy(hello.uuid, uuid.bytes, sizeof hello.uuid);
  connection->send(hello, nullptr);
  Message answer;
  switch (connection->wait(hello.ticket, &answer)) {
    case Connection::Outcome::Answered: return ncclSuccess;
    case Connection::Outcome::Closed: return failure(comm, ncclInternalError, "aborted while initialising");
    case Connection::Outcome::Failed: break;
  }
  std::string words;
  const int result = connection->error(&words);
  return failure(comm, result, words);
}

static bool is_config_valid(const ncclConfig218* config) {
  return !config || (config->magic == static_cast<unsigned>(NCCL_CONFIG_MAGIC) && config->size >= sizeof *config &&
                     config->version >= 21700);
}

static bool wants_blocking(const ncclConfig218* config, bool otherwise) {
  // Stronger than what the program asks for.
  if (!text("NCCL_COMM_BLOCKING").empty()) return number("NCCL_COMM_BLOCKING", 1) != 0;
  return config && config->blocking != NCCL_CONFIG_UNDEFINED ? config->blocking != 0 : otherwise;
}

static int init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, const ncclConfig218* config) {
  if (!out || size < 1 || rank < 0 || rank >= size) {
    const std::string words = "invalid rank " + std::to_string(rank) + " of " + std::to_string(size);
    return failure(nullptr, ncclInvalidArgument, words);
  }
  *out = nullptr;
  if (!is_config_valid(config)) return failure(nullptr, ncclInvalidArgument, "ncclConfig_t argument not initialized");
  if (std::memcmp(id.internal, IdMark, IdMarkBytes)) {
    return failure(nullptr, ncclInvalidArgument, "the unique id is not one that ncclGetUniqueId made");
  }
  if (standin_cuda_current_device() < 0) return failure(nullptr, ncclUnhandledCudaError, "no current CUDA device");
  auto comm = new Comm;
  comm->size = size;
  comm->rank = rank;
  comm->device = standin_cuda_current_device();
  comm->address = id.internal + IdMarkBytes;
  comm->is_blocking = wants_blocking(config, true);
  *out = comm;
  const int result = submit(Job{comm, [comm] { return join_world(comm); }});
  if (result && result != ncclInProgress) *out = nullptr;
  return result;
}

// A child begins in progress, as its parent ends: who waits for the parent alone notices.
static Comm* make_child(const Comm* parent, const Header& answer, bool is_blocking) {
  auto child = new Comm;
  child->size = answer.size;
  child->rank = answer.rank;
  child->device = parent->device;
  child->address = parent->address;
  child->id = answer.communicator;
  child->is_blocking = is_blocking;
  child->state = ncclInProgress;
  child->jobs = 1;
  return child;
}

static int begin_child(Comm* child) {
  const int result = join_world(child);
  std::lock_guard<std::mutex> lock(child->mutex);
  child->state = result;
  child->jobs--;
  child->changed.notify_all();
  return result;
}

static int split(Comm* parent, Header request, ncclComm_t* out, bool is_blocking) {
  Connection& connection = *parent->connection;
  request.ticket = connection.next_ticket();
  Message answer;
  connection.send(request, nullptr);
  switch (connection.wait(request.ticket, &answer)) {
    case Connection::Outcome::Answered: break;
    case Connection::Outcome::Closed: return failure(parent, ncclInternalError, "aborted while splitting");
    case Connection::Outcome::Failed: {
      std::string words;
      const int result = connection.error(&words);
      return failure(parent, result, words);
    }
  }
  if (answer.header.rank < 0) return ncclSuccess;
  Comm* child = make_child(parent, answer.header, is_blocking);
  // The program may look at it at any time.
  __atomic_store_n(out, child, __ATOMIC_RELEASE);
  if (is_blocking) return begin_child(child);
  std::thread(begin_child, child).detach();
  return ncclSuccess;
}

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  STANDIN_NCCL_CALL(ncclGetUniqueId);
  static std::atomic<int> count{0};
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char address[96];
  std::snprintf(address, sizeof address, "stand-in-nccl-%d-%d-%lx%lx", getpid(), count++, now.tv_sec, now.tv_nsec);
  if (!start_hub(address)) return failure(nullptr, ncclSystemError, "cannot listen on a unix socket");
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, IdMark, IdMarkBytes);
  std::memcpy(id->internal + IdMarkBytes, address, std::strlen(address));
  return ncclSuccess;
}

STANDIN_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank, void* config) {
  STANDIN_NCCL_CALL(ncclCommInitRankConfig);
  const int result = init(out, size, id, rank, static_cast<ncclConfig218*>(config));
  return result == ncclSuccess || result == ncclInProgress ? result : refuse(result);
}

STANDIN_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
  STANDIN_NCCL_CALL(ncclCommInitRank);
  const int result = init(out, size, id, rank, nullptr);
  return result == ncclSuccess || result == ncclInProgress ? result : refuse(result);
}

STANDIN_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out,
                                          void* config_pointer) {
  STANDIN_NCCL_CALL(ncclCommSplit);
  if (const int bad = check_ready(parent, "ncclCommSplit")) return refuse(bad);
  const auto config = static_cast<ncclConfig218*>(config_pointer);
  if (!out || color < -1 || !is_config_valid(config)) {
    return refuse(failure(parent, ncclInvalidArgument, "ncclCommSplit : invalid color, config or place for the child"));
  }
  *out = nullptr;
  Header request;
  request.kind = Kind::Split;
  request.color = color;
  request.key = key;
  {
    std::lock_guard<std::mutex> lock(parent->mutex);
    if (parent->in_flight) {
      parent->last_error = "ncclCommSplit : operations are in flight on the parent";
      return refuse(ncclInvalidUsage);
    }
    request.sequence = parent->collectives++;
  }
  const bool is_blocking = wants_blocking(config, parent->is_blocking);
  return submit(Job{parent, [=] { return split(parent, request, out, is_blocking); }});
}
