#pragma once

#include <string>

#include "profiler/report/table.h"
#include "sim/advise/advise.h"

namespace shardlens::cli {

// What `advise` prints; `source`: the run.
[[nodiscard]] std::string advice_text(const sim::Advice& advice,
                                      const std::string& source,
                                      report::Style style);

}  // namespace shardlens::cli
