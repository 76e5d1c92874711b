#pragma once

#include <string>

#include "core/base/shown.h"
#include "profiler/check/check.h"
#include "profiler/report/table.h"

namespace shardlens::report {

// The output of `shardlens check` in four formats; docs/use/gate-ci.md. In JSON, times are
// nanoseconds per step; a change and its interval are shares of the baseline (null if the baseline
// is 0).
[[nodiscard]] std::string check_json(const check::CheckResult& result);
[[nodiscard]] Shown check_text(const check::CheckResult& result, Style style);
// One test case per gate and one for the structure, in the format that Jenkins and GitLab read.
[[nodiscard]] std::string check_junit(const check::CheckResult& result);
[[nodiscard]] std::string check_markdown(const check::CheckResult& result);

}  // namespace shardlens::report
