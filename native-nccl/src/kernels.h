// The kernels of a module, by name. All are loaded when the device is opened: a first launch that loads its function
// lazily would wait for the device, and so for a collective that waits for other ranks.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine.h"
#include "library.h"

namespace lockstep {

class Kernels {
 public:
  // The context must be current. No text: no kernels.
  Status load(const std::string& ptx);
  void unload();
  // Null where there is none of that name.
  CUfunction find(const std::string& name) const;

 private:
  CUmodule module_ = nullptr;
  std::map<std::string, CUfunction> functions_;
};

// Parameters as a kernel finds them: each aligned to its own size. The blocks' addresses are those of now.
std::vector<unsigned char> pack_arguments(const std::vector<KernelArgument>& arguments);

}  // namespace lockstep
