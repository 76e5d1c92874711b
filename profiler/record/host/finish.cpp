#include "profiler/record/host/finish.h"

#include <fmt/format.h>

#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/spool/spool_trace.h"

namespace shardlens::record {

namespace {

// If the disk was full, the end marker and its count of dropped records are missing too.
trace::Spool finished_spool(SpoolRecorder& recorder) {
  trace::Spool spool = trace::read_spool(recorder.path());
  if (const std::string error = recorder.error(); !error.empty()) {
    spool.ended = true;
    spool.dropped = recorder.dropped();
    spool.notes.push_back("writing the spool failed before its end: " + error);
  }
  return spool;
}

}  // namespace

std::filesystem::path trace_path(const std::filesystem::path& directory, int rank) {
  return directory / fmt::format("rank{}.pt.trace.json.gz", rank);
}

std::filesystem::path finish_trace(SpoolRecorder& recorder) {
  recorder.finish();
  const SpoolOptions& options = recorder.options();
  std::filesystem::path path = trace_path(options.directory, options.rank);
  // Separate statements, so that the spool's records are freed before the text is made.
  trace::Trace trace = spool_to_trace(finished_spool(recorder));
  if (!recorder.page_error().empty()) {  // only a note: the trace is complete without the page
    add_diagnostic(trace.metadata.notes, trace::Severity::kNote, recorder.page_error());
  }
  trace::write_kineto(trace, path);
  recorder.remove_files();
  return path;
}

}  // namespace shardlens::record
