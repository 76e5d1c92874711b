#include "profiler/analysis/summary/summary_merge.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/analysis/rank_summary.h"
#include "profiler/analysis/summary/summary_file.h"
#include "profiler/trace/rank_numbers.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;

// The part of a summary that is kept until all have been read.
struct Rank {
  fs::path path;
  RankSummary summary;  // without what only settle() needs
  int64_t number = 0;
  size_t rows = 0;
};

Rank read_rank(const fs::path& path) {
  RankSummary all = read_summary(path);
  Rank out{path, {}, all.rank.value_or(0), all.collectives.rows.size()};
  RankSummary& kept = out.summary;
  kept.source = std::move(all.source);
  kept.rank = all.rank;
  kept.comm_regex = std::move(all.comm_regex);
  kept.chosen = all.chosen;
  kept.recorded_steps = std::move(all.recorded_steps);
  kept.unnumbered = all.unnumbered;
  kept.run_diagnostics = std::move(all.run_diagnostics);
  kept.collectives = std::move(all.collectives);
  if (!all.analysis.steps.empty()) {
    kept.analysis.steps.push_back(std::move(all.analysis.steps.front()));
  }
  return out;
}

std::string selection_of(const RankSummary& summary) {
  return (summary.chosen ? fmt::format("--steps {}:{}", summary.chosen->first, summary.chosen->last)
                         : std::string("all steps")) +
         (summary.comm_regex.empty() ? "" : fmt::format(", --comm-regex '{}'", summary.comm_regex));
}

void require_one_selection(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) {
    const std::string first = selection_of(ranks.front().summary);
    const std::string own = selection_of(rank.summary);
    if (own != first) {
      throw InputError(rank.path.string(),
                       fmt::format("summarized with {}, but {} with {}: summarize all ranks alike",
                                   own, ranks.front().path.string(), first));
    }
  }
}

// Ranks without a number get the lowest free ones, in the order of the files, as those of traces
// do (Run::open()).
void number_ranks(std::vector<Rank>& ranks) {
  std::map<int64_t, const Rank*> taken;
  for (const Rank& rank : ranks) {
    if (rank.summary.rank && !taken.emplace(rank.number, &rank).second) {
      throw InputError(rank.path.string(),
                       fmt::format("a second summary of rank {}, in addition to {}; merge one run "
                                   "at a time",
                                   rank.number, taken[rank.number]->path.string()));
    }
  }
  int64_t next = 0;
  for (Rank& rank : ranks) {
    if (!rank.summary.rank) {
      while (taken.contains(next)) {
        ++next;
      }
      taken.emplace(next, &rank);
      rank.number = next;
    }
  }
  for (Rank& rank : ranks) {
    rank.summary.collectives.rank = rank.number;
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const Rank& a, const Rank& b) { return a.number < b.number; });
}

RankSummary read_again(const Rank& rank) {
  RankSummary out = read_summary(rank.path);
  if (out.collectives.rows.size() != rank.rows || out.rank != rank.summary.rank) {
    throw InputError(rank.path.string(), "the file was changed while it was read");
  }
  out.analysis.rank = rank.number;
  if (!out.rank) {
    for (trace::Diagnostic& d : out.diagnostics) {
      if (d.message == trace::read_as_rank(0)) {
        d.message = trace::read_as_rank(rank.number);
      }
    }
  }
  return out;
}

}  // namespace

Analysis merge_summaries(std::span<const fs::path> files,
                         const std::function<void(RankAnalysis&&)>& each) {
  std::vector<Rank> ranks;
  std::string source;
  for (const fs::path& path : files) {
    source += (source.empty() ? "" : " ") + path.string();
    ranks.push_back(read_rank(path));
  }
  if (ranks.empty()) {
    throw UsageError("no path to a summary was given");
  }
  require_one_selection(ranks);
  number_ranks(ranks);
  RankMerge merge;
  for (Rank& rank : ranks) {
    merge.add(rank.summary);
  }
  merge.match(source);
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankSummary summary = read_again(ranks[i]);
    each(merge.settle(i, summary));
  }
  return merge.take();
}

}  // namespace shardlens::analysis
