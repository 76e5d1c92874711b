#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Writes a trace so that TensorBoard's PyTorch plugin sees its communication. The plugin takes a
// kernel for communication if it has the `External id` of a range with one of five names:
// "nccl:all_gather", "nccl:reduce_scatter", "nccl:all_reduce", "nccl:broadcast", "nccl:reduce" (or
// "gloo:…", which is communication itself). PyTorch writes "nccl:_all_gather_base" for FSDP. Each
// call that launched a collective gets such a range, and each collective of the CPU too.
//
// Calls and kernels come in any order, so call see() for every event first, then write().
//
// Source  torch_tb_profiler 0.4.3, profiler/trace.py (NcclOpNameSet) and event_parser.py.
class PluginRanges {
 public:
  void see(const Trace& trace, const Event& event);
  // Writes the event, and the range that belongs to it. `args`: as for KinetoWriter::event().
  void write(KinetoWriter& writer, const Trace& trace, const Event& event, std::string_view args);
  [[nodiscard]] int64_t ranges() const { return ranges_; }

 private:
  void write_range(KinetoWriter& writer,
                   const Trace& trace,
                   const Event& event,
                   std::string_view name,
                   uint32_t id);

  // By correlation: the range's name, and the External id that it shares with the kernel.
  struct Launched {
    std::string_view name;
    uint32_t id = 0;
  };
  std::unordered_map<uint32_t, Launched> launched_;
  uint32_t most_id_ = 0;  // of the ids in the trace, and then of those given
  int64_t ranges_ = 0;
};

}  // namespace shardlens::trace
