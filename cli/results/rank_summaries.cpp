#include "cli/results/rank_summaries.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/files/output_folder.h"
#include "core/json/json_dump.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/analysis/summary/summary_file.h"
#include "profiler/trace/run.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

// Names that are taken, so that no summary replaces another one of the same call.
class Names {
 public:
  void take(const fs::path& path, const fs::path& trace) {
    const std::scoped_lock lock(mutex_);
    if (const auto [other, fresh] = taken_.emplace(path, trace); !fresh) {
      throw InputError(
          trace.string(),
          fmt::format("its summary is {}, like that of {}; summarize one run at a time",
                      path.string(), other->second.string()));
    }
  }

 private:
  std::mutex mutex_;
  std::map<fs::path, fs::path> taken_;  // summary → trace
};

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

WrittenSummary write_summary(const fs::path& trace,
                             const fs::path& out,
                             const Outputs& outputs,
                             const analysis::AnalysisOptions& options,
                             const std::string& comm_regex,
                             Names& names) {
  analysis::RankSummary summary =
      analysis::summarize(analysis::open_run(std::span(&trace, 1), {.keep_flows = false}), options);
  summary.comm_regex = comm_regex;
  const fs::path path = outputs.file_in("--out", out.empty() ? trace.parent_path() : out,
                                        analysis::summary_name(summary));
  names.take(path, trace);
  const std::optional<int64_t> rank = summary.rank;
  const std::string bytes = analysis::to_summary_bytes(std::move(summary));
  write_file_atomically(path, bytes);
  return {rank, path, trace, bytes.size(), size_of(trace)};
}

}  // namespace

std::vector<WrittenSummary> write_summaries(std::span<const fs::path> paths,
                                            const Outputs& outputs,
                                            const analysis::AnalysisOptions& options,
                                            const std::string& comm_regex) {
  const std::vector<trace::ListedFile> traces = trace::listed_files(paths);
  // May be the directory of the traces: no summary has the name of a trace.
  const fs::path out = outputs.shared_directory("--out");
  if (!out.empty()) {
    (void)OutputFolder::make(out);
  }
  std::vector<WrittenSummary> all(traces.size());
  Names names;
  for (const std::string& refused : trace::for_each_trace(traces, [&](size_t i) {
         all[i] = write_summary(traces[i].path, out, outputs, options, comm_regex, names);
       })) {
    write_stderr("shardlens: left out: {}\n", refused);
  }
  std::erase_if(all, [](const WrittenSummary& each) { return each.path.empty(); });
  return all;
}

std::string summaries_json(const std::vector<WrittenSummary>& all) {
  nlohmann::ordered_json out{{"schema", 1}, {"summaries", nlohmann::ordered_json::array()}};
  for (const WrittenSummary& each : all) {
    out["summaries"].push_back(
        {{"rank", each.rank ? nlohmann::ordered_json(*each.rank) : nlohmann::ordered_json(nullptr)},
         {"path", each.path.string()},
         {"bytes", each.bytes},
         {"trace", each.trace.string()},
         {"trace_bytes", each.trace_bytes}});
  }
  return plan::json_text(out) + "\n";
}

Shown summaries_text(const std::vector<WrittenSummary>& all) {
  Shown out;
  for (const WrittenSummary& each : all) {
    out += show("{} ({} of {})\n", each.path, format_bytes(static_cast<Bytes>(each.bytes)),
                format_bytes(static_cast<Bytes>(each.trace_bytes)));
  }
  return out + "`shardlens merge` with all of these files analyzes the run\n";
}

}  // namespace shardlens::cli
