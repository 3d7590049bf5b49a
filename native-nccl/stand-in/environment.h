// What both stand-ins share: their variables, read at each use so that tests may change them; forced failures; reports.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace stand_in {

inline std::string text(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

inline long number(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atol(value) : otherwise;
}

// Of `variable` = "function:result[:n],...": what `function` has to return, in its n-th call (from 1) or in all.
// 0: nothing.
inline int forced_result(const char* variable, const char* function) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return 0;
  // Never destroyed: threads may call this while the process exits.
  static auto& mutex = *new std::mutex;
  static auto& calls = *new std::map<std::string, long>;
  const std::string all = std::string(",") + value + ",";
  const size_t at = all.find("," + std::string(function) + ":");
  if (at == std::string::npos) return 0;
  const std::string entry = all.substr(at + 1, all.find(',', at + 1) - at - 1);
  int result = 0;
  long wanted = 0;
  const int fields = std::sscanf(entry.c_str() + std::string(function).size(), ":%d:%ld", &result, &wanted);
  std::lock_guard<std::mutex> lock(mutex);
  const long call = ++calls[entry];
  return fields == 2 && call != wanted ? 0 : result;
}

// A misuse that the real library would answer with silence, garbage or a crash.
inline void report(const char* kind, const std::string& message) {
  std::fprintf(stderr, "STANDIN %s: %s\n", kind, message.c_str());
  const std::string path = text("STANDIN_CUDA_REPORT");
  if (!path.empty()) {
    // One write of less than a page in append mode: lines of several processes do not mix.
    if (std::FILE* file = std::fopen(path.c_str(), "a")) {
      std::fprintf(file, "%s: %s\n", kind, message.c_str());
      std::fclose(file);
    }
  }
  if (number("STANDIN_CUDA_ABORT_ON_REPORT", 0)) std::abort();
}

}  // namespace stand_in
