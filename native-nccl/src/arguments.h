// Reading of JavaScript values. What does not fit throws a TypeError or RangeError that says where it stood.
#pragma once
#include <napi.h>

#include <cstdint>
#include <string>

#include "handles.h"
#include "status.h"

namespace lockstep {

inline constexpr int largest_int = 0x7fffffff;

// Thrown inside the N-API layer only: an error that is no fault of the arguments.
struct Failure {
  Status status;
};

// Bytes of a Uint8Array that the engine may use while the array is alive.
struct View {
  uint8_t* data;
  size_t bytes;
};

class Argument {
 public:
  // `function` and `name` for errors.
  Argument(const Napi::CallbackInfo& info, size_t index, const char* function, const char* name);

  bool is_missing() const { return value_.IsUndefined(); }
  Napi::Value value() const { return value_; }
  const std::string& place() const { return place_; }

  Argument field(const char* name) const;
  Argument element(uint32_t index) const;
  uint32_t length() const;

  int64_t whole(int64_t least, int64_t most) const;
  // A count or an offset: from 0 to the largest number that JavaScript counts with.
  size_t count() const;
  double number() const;
  bool flag() const;
  std::string text() const;
  // Milliseconds from now; infinity is a time that does not come.
  int64_t timeout() const;
  // A view of memory that stays where it is: not shared, not resizable, not detached.
  View view() const;
  // An index into `names`.
  int one_of(const char* const* names, int count) const;

  template <class Handle>
  Handle& handle() const {
    Handle* handle = unwrap<Handle>(value_.Env(), value_);
    if (handle == nullptr) fail_type(Handle::name);
    return *handle;
  }
  // A block that was not released.
  const BlockRef& block() const;

  [[noreturn]] void fail_type(const std::string& expected) const;
  [[noreturn]] void fail_range(const std::string& expected) const;

 private:
  Argument(Napi::Value value, std::string place) : value_(value), place_(std::move(place)) {}
  std::string shown() const;

  Napi::Value value_;
  std::string place_;
};

}  // namespace lockstep
