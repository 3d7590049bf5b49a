// The operations of NCCL's interface: checks of their arguments, and what of the memory they touch.
#include "communicator.h"

namespace stand_in {

struct Buffers {
  const void* input;
  void* output;
  uint64_t input_count, output_count;  // elements that this rank reads and writes
};

static bool is_misaligned(CUdeviceptr pointer, int dtype) { return pointer % size_of(dtype) != 0; }

static int check_arguments(Comm* comm, const char* function, int dtype, int op, int root, CUstream stream) {
  if (const int bad = check_ready(comm, function)) return bad;
  const std::string name = function;
  if (!size_of(dtype)) return failure(comm, ncclInvalidArgument, name + " : invalid type " + std::to_string(dtype));
  if (op < ncclSum || op > ncclAvg) {
    return failure(comm, ncclInvalidArgument, name + " : invalid reduction operation " + std::to_string(op));
  }
  if (op == ncclAvg && !is_float(dtype)) {
    return failure(comm, ncclInvalidArgument, name + " : ncclAvg is not for integers");
  }
  if (root < 0 || root >= comm->size) {
    return failure(comm, ncclInvalidArgument, name + " : invalid root or peer " + std::to_string(root));
  }
  if (standin_cuda_stream_device(stream) != comm->device) {
    return failure(comm, ncclUnhandledCudaError, name + " : the stream is not one of the communicator's device");
  }
  return ncclSuccess;
}

// Input and output are apart, or at the place that NCCL names for in-place operation.
static bool is_overlap_legal(const Operation& operation, Collective kind) {
  const CUdeviceptr in = operation.input, out = operation.output;
  if (!operation.input_bytes || !operation.output_bytes) return true;
  if (in + operation.input_bytes <= out || out + operation.output_bytes <= in) return true;
  if (kind == Collective::AllGather) return in == out + operation.comm->rank * operation.input_bytes;
  if (kind == Collective::ReduceScatter) return out == in + operation.comm->rank * operation.output_bytes;
  return in == out;
}

static int collective(const char* function, Collective kind, Buffers buffers, size_t count, int dtype, int op, int root,
                      Comm* comm, CUstream stream) {
  if (const int bad = check_arguments(comm, function, dtype, op, root, stream)) return refuse(bad);
  if (!count) return ncclSuccess;
  auto operation = std::make_unique<Operation>();
  operation->comm = comm;
  operation->stream = stream;
  operation->name = function;
  operation->input = reinterpret_cast<CUdeviceptr>(buffers.input);
  operation->output = reinterpret_cast<CUdeviceptr>(buffers.output);
  operation->input_bytes = buffers.input_count * size_of(dtype);
  operation->output_bytes = buffers.output_count * size_of(dtype);
  const bool reads = operation->input_bytes != 0, writes = operation->output_bytes != 0;
  if ((reads && !buffers.input) || (writes && !buffers.output)) {
    return refuse(failure(comm, ncclInvalidArgument, std::string(function) + " : a buffer is NULL"));
  }
  if ((reads && is_misaligned(operation->input, dtype)) || (writes && is_misaligned(operation->output, dtype))) {
    return refuse(failure(comm, ncclInvalidArgument, std::string(function) + " : a buffer is not aligned to its type"));
  }
  if (!is_overlap_legal(*operation, kind)) {
    report("OVERLAP", std::string(function) + ": input and output overlap, and are not in place");
    return refuse(failure(comm, ncclInvalidArgument, std::string(function) + " : buffers overlap"));
  }
  Header& header = operation->header;
  header.kind = Kind::Collective;
  header.collective = kind;
  header.count = count;
  header.dtype = dtype;
  header.op = op;
  header.root = root;
  return submit(std::move(operation));
}

static int transfer(const char* function, bool is_send, const void* buffer, size_t count, int dtype, int peer,
                    Comm* comm, CUstream stream) {
  if (const int bad = check_arguments(comm, function, dtype, ncclSum, peer, stream)) return refuse(bad);
  const CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(buffer);
  if (count && (!pointer || is_misaligned(pointer, dtype))) {
    return refuse(failure(comm, ncclInvalidArgument, std::string(function) + " : the buffer is NULL or not aligned"));
  }
  auto operation = std::make_unique<Operation>();
  operation->comm = comm;
  operation->stream = stream;
  operation->name = function;
  operation->transfers.push_back({is_send, peer, pointer, count, dtype});
  return submit(std::move(operation));
}

// Before check_arguments has looked at the communicator.
static uint64_t ranks_of(const Comm* comm) { return comm ? comm->size : 0; }
static bool is_root(const Comm* comm, int root) { return comm && comm->rank == root; }

}  // namespace stand_in

using namespace stand_in;

STANDIN_EXPORT ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, int dtype, int op,
                                          ncclComm_t comm, CUstream stream) {
  STANDIN_NCCL_CALL(ncclAllReduce);
  return collective("ncclAllReduce", Collective::AllReduce, {input, output, count, count}, count, dtype, op, 0, comm,
                    stream);
}

// Only the root's input is read.
STANDIN_EXPORT ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, int dtype, int root,
                                          ncclComm_t comm, CUstream stream) {
  STANDIN_NCCL_CALL(ncclBroadcast);
  return collective("ncclBroadcast", Collective::Broadcast, {input, output, is_root(comm, root) ? count : 0, count},
                    count, dtype, ncclSum, root, comm, stream);
}

// Only the root's output is written.
STANDIN_EXPORT ncclResult_t ncclReduce(const void* input, void* output, size_t count, int dtype, int op, int root,
                                       ncclComm_t comm, CUstream stream) {
  STANDIN_NCCL_CALL(ncclReduce);
  return collective("ncclReduce", Collective::Reduce, {input, output, count, is_root(comm, root) ? count : 0}, count,
                    dtype, op, root, comm, stream);
}

STANDIN_EXPORT ncclResult_t ncclAllGather(const void* input, void* output, size_t count, int dtype, ncclComm_t comm,
                                          CUstream stream) {
  STANDIN_NCCL_CALL(ncclAllGather);
  return collective("ncclAllGather", Collective::AllGather, {input, output, count, count * ranks_of(comm)}, count,
                    dtype, ncclSum, 0, comm, stream);
}

STANDIN_EXPORT ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, int dtype, int op,
                                              ncclComm_t comm, CUstream stream) {
  STANDIN_NCCL_CALL(ncclReduceScatter);
  return collective("ncclReduceScatter", Collective::ReduceScatter, {input, output, count * ranks_of(comm), count},
                    count, dtype, op, 0, comm, stream);
}

STANDIN_EXPORT ncclResult_t ncclSend(const void* buffer, size_t count, int dtype, int peer, ncclComm_t comm,
                                     CUstream stream) {
  STANDIN_NCCL_CALL(ncclSend);
  return transfer("ncclSend", true, buffer, count, dtype, peer, comm, stream);
}

STANDIN_EXPORT ncclResult_t ncclRecv(void* buffer, size_t count, int dtype, int peer, ncclComm_t comm,
                                     CUstream stream) {
  STANDIN_NCCL_CALL(ncclRecv);
  return transfer("ncclRecv", false, buffer, count, dtype, peer, comm, stream);
}
