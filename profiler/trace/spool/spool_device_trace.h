#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "profiler/trace/model/trace.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::trace {

// What turning device records into events needs of the rest of a spool's conversion.
struct SpoolTracks {
  std::function<uint32_t(uint32_t thread)> of_thread;
  std::function<CollectiveArgs(const SpoolRecord& call)> arguments;  // of a kCollectiveCall
  std::function<std::string(const SpoolRange&)> name_of_range;
};

// Adds what the device's recorder saw, as Kineto writes it: kernels, copies and memsets on (device,
// stream); the calls of runtime and driver on their threads; flows between the two; hulls of the
// host's ranges as gpu_user_annotation; synchronisations with what they waited for; overhead;
// memory.
//
// A kernel that was launched within a kCollectiveCall, on its thread, has that collective's
// arguments. "External id" says whom the launch was for (owner.h). ProfilerStep ranges get no hull:
// analyses would take it for a step of the host.
//
// Complexity  O(n log n).
void add_device_records(const Spool& spool, const SpoolTracks& tracks, Trace& trace);

}  // namespace shardlens::trace
