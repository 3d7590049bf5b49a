// What ranks and the hub say to each other: a header, then `bytes` of payload. Both ends are builds of this file.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

#include "../../src/abi.h"

namespace stand_in {

enum class Kind : uint32_t {
  Hello,       // rank: communicator, rank, size, uuid, device
  Ready,       // hub: all ranks have said hello
  Collective,  // rank: sequence, collective, count, dtype, op, root, its input
  Result,      // hub: the output of this rank
  Send,        // rank: peer, count, dtype, the data
  Receive,     // rank: peer, count, dtype
  Matched,     // hub: the send has its receive, or the data of the receive
  Split,       // rank: sequence, color, key
  Child,       // hub: communicator, rank, size; rank -1: none
  Goodbye,     // rank: it leaves on purpose
  Error,       // hub: result, text
};

enum class Collective : int32_t { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter };

struct Header {
  Kind kind{};
  uint32_t communicator = 0;
  uint32_t ticket = 0;  // of the rank's request; the answer repeats it
  int32_t rank = 0, size = 0, device = 0;
  unsigned char uuid[16] = {};
  uint64_t sequence = 0, count = 0, bytes = 0;
  Collective collective{};
  int32_t dtype = 0, op = 0, root = 0, peer = 0, color = 0, key = 0, result = 0;
};

// Bytes of an element; 0: no such type.
inline size_t size_of(int dtype) {
  switch (dtype) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;
  }
}

inline bool is_float(int dtype) { return dtype >= ncclFloat16 && dtype <= ncclBfloat16; }

}  // namespace stand_in
