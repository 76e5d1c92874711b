#pragma once

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
  // Whether take() is called now. Asked about once per window of the text, and at the end of the
  // trace: then `whole` is true.
  virtual bool wants(const Trace& so_far, bool whole) = 0;
  // `part`: a copy, as if the file ended here.
  virtual void take(Trace part) = 0;
};

}  // namespace shardlens::trace
