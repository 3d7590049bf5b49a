// Commands on the compute stream, for which nobody waits: their errors come with the next work of the device.
#include <utility>

#include "block.h"
#include "device-engine.h"
#include "errors.h"

namespace lockstep {

namespace {

struct Access {
  BlockRef block;
  bool is_written;
};

// Puts something on the compute stream, behind what its blocks were used for before.
Step put_on_compute_stream(Engine& engine, const std::vector<Access>& accesses, const std::string& what,
                           const std::function<Status(CUstream)>& call) {
  if (!engine.has_room(compute_stream)) return Step::Again;
  for (const Access& access : accesses) {
    if (access.block->open_transfers) return Step::Again;
  }
  CUstream stream = engine.stream(compute_stream);
  Waits waits;
  std::vector<BlockRef> blocks;
  for (const Access& access : accesses) {
    access.block->hazards.collect(access.is_written, &waits);
    blocks.push_back(access.block);
  }
  Status status = engine.checked("cuStreamWaitEvent", waits.apply(compute_stream, stream));
  if (status.ok()) status = call(stream);
  MarkRef mark;
  if (status.ok()) status = engine.track(compute_stream, nullptr, std::move(blocks), &mark);
  if (!status.ok()) {
    engine.defer(with_context(what, status));
    return Step::Done;
  }
  for (const Access& access : accesses) access.block->hazards.note(mark, access.is_written);
  return Step::Done;
}

}  // namespace

void copy(const BlockRef& target, size_t target_offset, const BlockRef& source, size_t source_offset, size_t bytes) {
  if (bytes == 0) return;
  Engine* engine = target->engine.get();
  engine->post(nullptr, [=] {
    return put_on_compute_stream(*engine, {{source, false}, {target, true}}, "copy", [=](CUstream stream) {
      CUdeviceptr to = target->address + target_offset, from = source->address + source_offset;
      return engine->checked("cuMemcpyDtoDAsync", cuda().cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
    });
  });
}

bool has_kernel(const EngineRef& engine, const std::string& name) { return engine->kernels.find(name) != nullptr; }

void launch(const EngineRef& engine, const std::string& kernel, unsigned grid, unsigned block,
            std::vector<KernelArgument> arguments) {
  CUfunction function = engine->kernels.find(kernel);
  Engine* self = engine.get();
  std::vector<Access> accesses;
  for (const KernelArgument& argument : arguments) {
    if (argument.kind == KernelArgument::Pointer) accesses.push_back({argument.block, argument.is_written});
  }
  self->post(nullptr, [=, buffer = pack_arguments(arguments)]() mutable {
    auto call = [&](CUstream stream) {
      if (!function) return make_status(Code::Cuda, "there is no kernel of this name");
      size_t bytes = buffer.size();
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                       CU_LAUNCH_PARAM_END};
      CUresult result = cuda().cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, nullptr, extra);
      return self->checked("cuLaunchKernel", result);
    };
    return put_on_compute_stream(*self, accesses, "kernel " + kernel, call);
  });
}

}  // namespace lockstep
