#pragma once

#include <string_view>

namespace shardlens::report {

// The contents of report_page.html; "@DATA@" is to be replaced by the data.
[[nodiscard]] std::string_view report_page();

}  // namespace shardlens::report
