// The driver and NCCL as loaded at run time, and what can be asked of them without a device open.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "status.h"
#include "symbols.h"

namespace lockstep {

struct LibraryProbe {
  bool is_loaded = false;
  std::string path;                // that loaded; empty: none did
  std::vector<std::string> tried;  // in order
  int version = 0;                 // 0: not known
  std::string error;
};

struct Probe {
  LibraryProbe cuda, nccl;
  int device_count = 0;
};

// The first call in the process loads; later ones return what it found. Nothing is ever unloaded: both libraries have
// threads and thread-local state of their own that outlive any use.
const Probe& probe(const std::vector<std::string>& cuda_paths, const std::vector<std::string>& nccl_paths);

// Ok where both libraries are loaded.
Status library_status();

// Valid where library_status() is Ok. Mutable only so that a test can put a function of its own in the table.
CudaFunctions& cuda();
NcclFunctions& nccl();

struct DeviceInfo {
  std::string name;
  std::string uuid;        // 32 hexadecimal digits
  std::string pci_bus_id;  // as 0000:3b:00.0
  uint64_t total_bytes = 0;
  int compute_major = 0, compute_minor = 0;
};
Status device_info(int index, DeviceInfo* info);

// ncclGetUniqueId: 128 bytes.
Status unique_id(uint8_t* id);

}  // namespace lockstep
