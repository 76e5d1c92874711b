// fmt's functions, compiled into the program of the Python package: Debian has fmt as a shared
// library only, which would need a newer C++ runtime. What is missing here comes from the shared
// library, which is then bundled.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace shardlens::cli {

// Formatting these instantiates the templates that the library exports.
std::string formatted_examples(double number, float small, const std::locale& locale) {
  return fmt::format(locale, "{} {} {:L} {:L}", number, small, number, 1);
}

}  // namespace shardlens::cli
