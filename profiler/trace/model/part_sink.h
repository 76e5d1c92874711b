#pragma once

#include <cstddef>
#include <optional>

namespace shardlens::trace {

class Trace;

// Is offered what has been read of a trace, to show it before the rest is read.
//
// Threads  called by the thread that reads the trace; those of several traces at the same time.
class PartSink {
 public:
  PartSink() = default;
  PartSink(const PartSink&) = delete;
  PartSink& operator=(const PartSink&) = delete;
  virtual ~PartSink() = default;
  // The first event of a part with which take() is called now; nullopt: it is not. Asked about once
  // per window of the text, and at the end of the trace: then `whole` is true. `host_only`: so many
  // events at the beginning name no stream of a device.
  virtual std::optional<size_t> wants(const Trace& so_far, size_t host_only, bool whole) = 0;
  // `part`: a copy, as if the file ended here and had no events before the first.
  virtual void take(Trace part) = 0;
};

}  // namespace shardlens::trace
