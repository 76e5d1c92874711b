#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "profiler/trace/model/trace.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::trace {

// The functions of the spool's conversion that the device records need.
struct SpoolTracks {
  std::function<uint32_t(uint32_t thread)> of_thread;
  std::function<CollectiveArgs(const SpoolRecord& call)> arguments;  // for a kCollectiveCall
  std::function<std::string(const SpoolRange&)> name_of_range;
};

// Adds the records of the device's recorder as events in Kineto's form: kernels, copies and memsets
// on (device, stream); runtime and driver calls on their threads; flows from calls to device
// events; the span of the kernels of each host range as gpu_user_annotation; synchronisations with
// what they waited for; overhead; memory.
//
// A kernel that was launched within a kCollectiveCall on the same thread gets that collective's
// arguments. "External id" is the owner of the launch (owner.h). ProfilerStep ranges get no
// gpu_user_annotation, because analyses would take it for a step of the host.
//
// Complexity  O(n log n).
void add_device_records(const Spool& spool, const SpoolTracks& tracks, Trace& trace);

}  // namespace shardlens::trace
