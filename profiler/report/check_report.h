#pragma once

#include <string>

#include "profiler/check/check.h"
#include "profiler/report/table.h"

namespace shardlens::report {

// `shardlens check` in four forms; docs/ci.md. Times in JSON are nanoseconds per step, a change
// and its interval shares of the baseline (null where that is 0).
[[nodiscard]] std::string check_json(const check::CheckResult& result);
[[nodiscard]] std::string check_text(const check::CheckResult& result, Style style);
// One test case per gate and one for the structure, as Jenkins and GitLab read it.
[[nodiscard]] std::string check_junit(const check::CheckResult& result);
[[nodiscard]] std::string check_markdown(const check::CheckResult& result);

}  // namespace shardlens::report
