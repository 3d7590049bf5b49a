// What a call came to; the C++ side of NativeFailure in ../index.d.ts.
#pragma once
#include <string>

namespace lockstep {

enum class Code { Ok, Unavailable, OutOfMemory, Cuda, Nccl, Timeout, Aborted, Closed };

struct Status {
  Code code = Code::Ok;
  std::string message;
  std::string call;    // library function that failed
  int result = 0;      // what it returned
  std::string detail;  // ncclGetLastError
  bool is_device_lost = false;

  bool ok() const { return code == Code::Ok; }
};

}  // namespace lockstep
