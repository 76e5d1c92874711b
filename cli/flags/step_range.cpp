#include "cli/flags/step_range.h"

#include <limits>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/json/decimal.h"

namespace shardlens::cli {

analysis::StepRange parse_step_range(const std::string& text) {
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& part, int64_t fallback) -> std::optional<int64_t> {
    const bool digits = part.find_first_not_of("0123456789") == std::string::npos;
    return part.empty() ? std::optional(fallback)
           : digits     ? trace::scaled_decimal(part, 0)
                        : std::nullopt;
  };
  if (colon != std::string::npos) {
    const auto first = number(text.substr(0, colon), 0);
    const auto last = number(text.substr(colon + 1), std::numeric_limits<int64_t>::max());
    if (first && last && *first < *last) {
      return {*first, *last};
    }
  }
  throw UsageError(fmt::format(
      "--steps: expected A:B with A < B (steps A to B - 1; A or B may be left out), found '{}'",
      text));
}

}  // namespace shardlens::cli
