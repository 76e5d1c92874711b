#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/atomic_file.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Writes a trace event by event, so that one of any size passes through little memory.
class KinetoWriter {
 public:
  // Begins with the metadata, and the names of processes, tracks and units, of `head`, which must
  // outlive the writer; its events are not written.
  KinetoWriter(const Trace& head, TextOutput out);
  KinetoWriter(const KinetoWriter&) = delete;
  KinetoWriter& operator=(const KinetoWriter&) = delete;
  ~KinetoWriter();
  // `event`: absolute time; its names and tracks are those of `trace`. `args`: an object as it
  // shall stand; "": what the side tables say.
  void event(const Trace& trace, const Event& event, std::string_view args = {});
  void finish();  // once, at the end

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

// A file ending in .json or .json.gz that gets its name when it is whole.
// Errors: UsageError for a name that ends in neither; RuntimeFault if it cannot be written.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path);
  [[nodiscard]] TextOutput output();
  void commit();

 private:
  AtomicFile file_;
  std::unique_ptr<GzipEncoder> encoder_;  // nullptr: plain
};

// The trace as Kineto JSON, which Perfetto, Chrome and Holistic Trace Analysis read: schemaVersion,
// distributedInfo, baseTimeNanoseconds, displayTimeUnit, traceEvents with names of processes and
// threads, traceName. ts and dur are microseconds with exactly three decimals, relative to
// metadata.base_time, so that reading back gives the same nanoseconds.
//
// A collective's arguments are Kineto's (`Collective name`, `In msg nelems`, …) and ours: `unit`
// (FQN), `seq`, `action`, `issued_ns`. Actions and hook events are instants of category
// `shardlens`: `seq`, `op` or `hook`, `unit`, `stream`, `buffer`, `event`, `cause`, `axis`
// (docs/trace_format.md).
[[nodiscard]] std::string to_kineto_json(const Trace& trace);

// Writes it, compressed when the name ends in .gz, under a temporary name that is then renamed.
// Errors: UsageError for a name that ends in neither .json nor .json.gz; RuntimeFault if it cannot
// be written.
void write_kineto(const Trace& trace, const std::filesystem::path& path);

}  // namespace shardlens::trace
