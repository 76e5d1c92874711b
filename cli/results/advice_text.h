#pragma once

#include <string>

#include "core/base/shown.h"
#include "profiler/report/table.h"
#include "sim/advise/advise.h"

namespace shardlens::cli {

// The text that `advise` prints; `source`: the run.
[[nodiscard]] Shown advice_text(const sim::Advice& advice,
                                const std::string& source,
                                report::Style style);

}  // namespace shardlens::cli
