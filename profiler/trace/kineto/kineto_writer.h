#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/files/atomic_file.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Writes a trace event by event, so that a trace of any size can be written with little memory.
class KinetoWriter {
 public:
  // Writes the metadata and the names of processes, tracks and units of `head`, but not its events.
  // `head` must outlive the writer.
  KinetoWriter(const Trace& head, TextOutput out);
  KinetoWriter(const KinetoWriter&) = delete;
  KinetoWriter& operator=(const KinetoWriter&) = delete;
  ~KinetoWriter();
  // `event`: with absolute time; its names and tracks are those of `trace`. `args`: a JSON object
  // to write unchanged; "": the arguments are derived from the side tables.
  void event(const Trace& trace, const Event& event, std::string_view args = {});
  void finish();  // call once, at the end

 private:
  class Body;
  std::unique_ptr<Body> body_;
};

// A file ending in .json or .json.gz, written under a temporary name and renamed by commit().
// Errors: UsageError for any other ending; RuntimeFault if the file cannot be written.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path);
  [[nodiscard]] TextOutput output();
  void commit();

 private:
  AtomicFile file_;
  std::unique_ptr<GzipEncoder> encoder_;  // nullptr: plain
};

// The trace as Kineto JSON, which Perfetto, Chrome and Holistic Trace Analysis can read:
// schemaVersion, distributedInfo, baseTimeNanoseconds, displayTimeUnit, traceEvents with names of
// processes and threads, traceName. ts and dur are microseconds with exactly three decimals,
// relative to metadata.base_time, so that reading the file gives the same nanoseconds.
//
// A collective has Kineto's arguments (`Collective name`, `In msg nelems`, …) and these of
// Shardlens: `unit` (FQN), `seq`, `action`, `issued_ns`. Actions and hook events are instants of
// category `shardlens`: `seq`, `op` or `hook`, `unit`, `stream`, `buffer`, `event`, `cause`, `axis`
// (docs/reference/formats.md).
[[nodiscard]] std::string to_kineto_json(const Trace& trace);

// Writes the trace under a temporary name that is then renamed; compressed if the name ends in .gz.
// Errors: UsageError if the name ends in neither .json nor .json.gz; RuntimeFault if the file
// cannot be written.
void write_kineto(const Trace& trace, const std::filesystem::path& path);

}  // namespace shardlens::trace
