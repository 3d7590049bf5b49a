#include "arguments.h"

#include <cmath>
#include <utility>

namespace lockstep {

namespace {

constexpr int64_t largest_whole = (int64_t{1} << 53) - 1;

// ArrayBuffers that may grow or shrink have this property; N-API knows nothing of them.
bool is_resizable(const Napi::ArrayBuffer& buffer) {
  Napi::Value resizable = buffer.Get("resizable");
  return resizable.IsBoolean() && resizable.As<Napi::Boolean>().Value();
}

}  // namespace

Argument::Argument(const Napi::CallbackInfo& info, size_t index, const char* function, const char* name)
    : value_(info[index]), place_(std::string(function) + ": " + name) {}

std::string Argument::shown() const {
  if (value_.IsString()) return "'" + value_.As<Napi::String>().Utf8Value().substr(0, 80) + "'";
  if (value_.IsNumber() || value_.IsUndefined() || value_.IsNull() || value_.IsBoolean()) {
    return value_.ToString().Utf8Value();
  }
  if (value_.IsExternal()) return "another handle";
  if (value_.IsArray()) return "an array";
  if (value_.IsFunction()) return "a function";
  return value_.IsObject() ? "an object" : "another value";
}

void Argument::fail_type(const std::string& expected) const {
  throw Napi::TypeError::New(value_.Env(), place_ + ": expected " + expected + ", got " + shown());
}

void Argument::fail_range(const std::string& expected) const {
  throw Napi::RangeError::New(value_.Env(), place_ + ": expected " + expected + ", got " + shown());
}

Argument Argument::field(const char* name) const {
  // An external is an object that has no fields.
  if (!value_.IsObject() || value_.IsExternal()) fail_type("an object");
  return Argument(value_.As<Napi::Object>().Get(name), place_ + "." + name);
}

uint32_t Argument::length() const {
  if (!value_.IsArray()) fail_type("an array");
  return value_.As<Napi::Array>().Length();
}

Argument Argument::element(uint32_t index) const {
  return Argument(value_.As<Napi::Array>().Get(index), place_ + "[" + std::to_string(index) + "]");
}

double Argument::number() const {
  if (!value_.IsNumber()) fail_type("a number");
  return value_.As<Napi::Number>().DoubleValue();
}

int64_t Argument::whole(int64_t least, int64_t most) const {
  double value = number();
  if (!(value >= double(least) && value <= double(most)) || value != std::floor(value)) {
    fail_range("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int64_t>(value);
}

size_t Argument::count() const { return static_cast<size_t>(whole(0, largest_whole)); }

int64_t Argument::timeout() const {
  double value = number();
  if (!(value >= 0)) fail_range("milliseconds, 0 or more");
  return static_cast<int64_t>(std::fmin(std::ceil(value), double(largest_whole)));
}

bool Argument::flag() const {
  if (!value_.IsBoolean()) fail_type("a boolean");
  return value_.As<Napi::Boolean>().Value();
}

std::string Argument::text() const {
  if (!value_.IsString()) fail_type("a string");
  return value_.As<Napi::String>().Utf8Value();
}

int Argument::one_of(const char* const* names, int count) const {
  std::string name = text(), all;
  for (int i = 0; i < count; i++) {
    if (name == names[i]) return i;
    all += (i > 0 ? ", " : "") + std::string(names[i]);
  }
  fail_range("one of " + all);
}

View Argument::view() const {
  napi_env env = value_.Env();
  napi_typedarray_type type = napi_int8_array;
  size_t bytes = 0;
  void* data = nullptr;
  napi_value memory = nullptr;
  // Not by properties, which a program may shadow.
  if (!value_.IsTypedArray()) fail_type("a Uint8Array");
  napi_status found = napi_get_typedarray_info(env, value_, &type, &bytes, &data, &memory, nullptr);
  if (found != napi_ok || type != napi_uint8_array) fail_type("a Uint8Array");
  if (!Napi::Value(env, memory).IsArrayBuffer()) fail_type("a Uint8Array whose memory is not shared");
  Napi::ArrayBuffer buffer(env, memory);
  if (buffer.IsDetached()) fail_type("a Uint8Array whose memory was not transferred away");
  if (is_resizable(buffer)) fail_type("a Uint8Array over an ArrayBuffer of a fixed size");
  return {static_cast<uint8_t*>(data), bytes};
}

const BlockRef& Argument::block() const {
  const BlockHandle& found = handle<BlockHandle>();
  if (!found.block) {
    Status status;
    status.code = Code::Closed;
    status.message = place_ + ": the block was released before";
    throw Failure{status};
  }
  return found.block;
}

}  // namespace lockstep
