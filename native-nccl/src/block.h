// Device memory of one owner; it goes back to the allocator with the last reference.
#pragma once
#include <memory>
#include <utility>

#include "allocator.h"
#include "engine.h"

namespace lockstep {

class Block {
 public:
  // `engine` keeps the device's state alive, not the device open.
  Block(EngineRef engine, std::shared_ptr<Allocator> allocator, Chunk* chunk, size_t bytes)
      : engine(std::move(engine)),
        address(chunk->address()),
        bytes(bytes),
        hazards(std::move(chunk->hazards)),
        allocator_(std::move(allocator)),
        chunk_(chunk) {}
  ~Block() { allocator_->release(chunk_, std::move(hazards)); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const EngineRef engine;
  const CUdeviceptr address;
  const size_t bytes;

  // The rest is of the engine thread.
  Hazards hazards;
  // Uploads and downloads that have still copies to put on a stream; until then `hazards` does not know them all.
  int open_transfers = 0;

 private:
  const std::shared_ptr<Allocator> allocator_;
  Chunk* const chunk_;
};

}  // namespace lockstep
