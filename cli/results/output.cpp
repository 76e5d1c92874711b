#include "cli/results/output.h"

#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

namespace shardlens::cli {
report::Style style_of_stdout() {
  static const report::Style kStyle{
      .escapes = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr,
      .width = width_of_stdout()};
  return kStyle;
}

size_t width_of_stdout() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 100;
}

Shown bold(const Shown& text) {
  return report::bold(text, style_of_stdout());
}

Shown bold(Literal text) {
  return bold(Shown(text));
}

std::string format_count(int64_t count) {
  const std::string digits = std::to_string(count);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') {
      out += ',';
    }
    out += digits[i];
  }
  return out;
}

}  // namespace shardlens::cli
