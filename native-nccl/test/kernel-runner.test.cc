// Runs kernels of libkernels.so for a program that sends launches on standard input, and gives the memory back on
// standard output: for the tests of the kernels in TypeScript. Without input it has nothing to do, and passes. With
// --list it prints the names of all kernels. Exit 1 and a message: a launch that does not fit its kernel.
//
// All numbers are little-endian. A launch: u32 length of the name, the name, u32 grid size, u32 block size, u32 count
// of buffers and of each u64 bytes and its contents, u32 count of arguments and of each four u64:
//     0, the bits, 0, 0                                   a number, or a null pointer
//     1 read or 2 written, buffer, byte offset, bytes     a pointer
// The answer to each launch: the contents of its buffers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../kernels/kernel-table.h"

using lockstep::StandInKernel;
using lockstep::StandInParameter;

namespace {

// Memory of exactly so many bytes, so that a sanitizer sees what goes beyond.
struct Buffer {
  uint64_t bytes = 0;
  std::unique_ptr<char[]> memory;
};

struct Argument {
  uint64_t kind, value, offset, bytes;
};

// False at the end of the input.
bool read_bytes(void* target, size_t bytes) {
  if (std::fread(target, 1, bytes, stdin) == bytes) return true;
  if (std::ferror(stdin)) throw std::runtime_error("standard input cannot be read");
  return false;
}

template <class Number>
Number read_number() {
  Number value;
  if (!read_bytes(&value, sizeof value)) throw std::runtime_error("the input ends within a launch");
  return value;
}

const StandInKernel& find_kernel(const std::string& name) {
  int count = 0;
  const StandInKernel* kernels = lockstep::standin_kernels(&count);
  for (int i = 0; i < count; i++) {
    if (name == kernels[i].name) return kernels[i];
  }
  throw std::runtime_error("no such kernel");
}

// What to put into the parameter block.
uint64_t bits_of(const StandInParameter& parameter, const Argument& argument, const std::vector<Buffer>& buffers) {
  if (argument.kind == 0) {
    if (parameter.is_pointer && argument.value != 0) throw std::runtime_error("a number for a pointer");
    return argument.value;
  }
  if (!parameter.is_pointer) throw std::runtime_error("a pointer for a number");
  if ((argument.kind == 2) == parameter.is_const) {
    throw std::runtime_error("isWritten is not what the kernel does with the memory");
  }
  const Buffer& buffer = buffers.at(argument.value);
  if (argument.offset > buffer.bytes || argument.bytes > buffer.bytes - argument.offset) {
    throw std::runtime_error("a range beyond its buffer");
  }
  return reinterpret_cast<uint64_t>(buffer.memory.get() + argument.offset);
}

void run_launch(const std::string& name) {
  const unsigned grid[3] = {read_number<uint32_t>(), 1, 1}, block[3] = {read_number<uint32_t>(), 1, 1};
  std::vector<Buffer> buffers(read_number<uint32_t>());
  for (Buffer& buffer : buffers) {
    buffer.bytes = read_number<uint64_t>();
    buffer.memory.reset(new char[buffer.bytes]);
    if (!read_bytes(buffer.memory.get(), buffer.bytes)) throw std::runtime_error("the input ends within a buffer");
  }
  std::vector<Argument> arguments(read_number<uint32_t>());
  for (Argument& argument : arguments) argument = read_number<Argument>();

  const StandInKernel& kernel = find_kernel(name);
  if (static_cast<int>(arguments.size()) != kernel.parameter_count) {
    throw std::runtime_error("expected " + std::to_string(kernel.parameter_count) + " arguments");
  }
  if (grid[0] == 0 || block[0] == 0 || block[0] > 1024) throw std::runtime_error("a grid or block of no size");
  std::vector<char> parameters(kernel.parameter_bytes);
  for (size_t i = 0; i < arguments.size(); i++) {
    const StandInParameter& parameter = kernel.parameters[i];
    const uint64_t bits = bits_of(parameter, arguments[i], buffers);
    std::memcpy(parameters.data() + parameter.offset, &bits, parameter.bytes);
  }
  kernel.run(parameters.data(), grid, block, 0);
  for (const Buffer& buffer : buffers) std::fwrite(buffer.memory.get(), 1, buffer.bytes, stdout);
}

void list_kernels() {
  int count = 0;
  const StandInKernel* kernels = lockstep::standin_kernels(&count);
  for (int i = 0; i < count; i++) std::printf("%s\n", kernels[i].name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && !std::strcmp(argv[1], "--list")) {
    list_kernels();
    return 0;
  }
  std::string name;
  try {
    uint32_t length;
    while (read_bytes(&length, sizeof length)) {
      name.resize(length);
      if (!read_bytes(&name[0], length)) throw std::runtime_error("the input ends within a name");
      run_launch(name);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel-runner: %s: %s\n", name.c_str(), error.what());
    return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
