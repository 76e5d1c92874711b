#pragma once

#include <string>

#include "profiler/analysis/analysis.h"

namespace shardlens::report {

// analysis_json() in pieces, for runs of so many ranks that their figures are not kept.
class JsonPieces {
 public:
  // By rank.
  [[nodiscard]] std::string rank(const analysis::RankAnalysis& rank);
  // After the last rank; Analysis::ranks is not used.
  [[nodiscard]] std::string end(const analysis::Analysis& analysis) const;

 private:
  bool first_ = true;
};

}  // namespace shardlens::report
