#pragma once

#include <string_view>

namespace shardlens::report {

// report_page.html as it stands; "@DATA@" is where the data belong.
[[nodiscard]] std::string_view report_page();

}  // namespace shardlens::report
