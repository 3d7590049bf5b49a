// Tests of C++ parts: TEST("words") { ... CHECK(x); }. The program runs all, or with `--only substring` those whose
// words contain it, prints a line for each, and exits with 1 when a check failed.
#pragma once
#include <cstdio>
#include <cstring>
#include <vector>

namespace check {

struct Test {
  const char* words;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

// Of the test that runs; an int, not a list, so that CHECK works in a child after fork and on other threads.
inline int& failures() {
  static int count = 0;
  return count;
}

inline bool add(const char* words, void (*run)()) {
  tests().push_back({words, run});
  return true;
}

inline void expect(bool holds, const char* expression, const char* file, int line) {
  if (holds) return;
  __atomic_add_fetch(&failures(), 1, __ATOMIC_SEQ_CST);
  std::printf("    %s:%d: not true: %s\n", file, line, expression);
  std::fflush(stdout);
}

inline int run_all(int argc, char** argv) {
  const char* only = argc == 3 && !std::strcmp(argv[1], "--only") ? argv[2] : "";
  int failed = 0, run = 0;
  for (const Test& test : tests()) {
    if (!std::strstr(test.words, only)) continue;
    failures() = 0;
    test.run();
    run++;
    if (failures()) failed++;
    std::printf("%s %s\n", failures() ? "FAILED" : "ok", test.words);
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failed\n", run, failed);
  // A filter that finds nothing must not look like success.
  return failed || !run ? 1 : 0;
}

}  // namespace check

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)
#define TEST(words)                                                                                       \
  static void CHECK_JOIN(test_, __LINE__)();                                                              \
  [[maybe_unused]] static const bool CHECK_JOIN(added_, __LINE__) = check::add(words, CHECK_JOIN(test_, __LINE__)); \
  static void CHECK_JOIN(test_, __LINE__)()
#define CHECK(expression) check::expect(static_cast<bool>(expression), #expression, __FILE__, __LINE__)

// Where the file is included in the one source of a test program.
int main(int argc, char** argv) { return check::run_all(argc, argv); }
