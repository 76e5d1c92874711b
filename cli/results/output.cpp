#include "cli/results/output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

[[noreturn]] void fail() {
  throw RuntimeFault(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

}  // namespace

void write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail();
  }
}

void flush_stdout() {
  if (std::fflush(stdout) != 0) {
    fail();
  }
}

report::Style style_of_stdout() {
  static const bool kTerminal = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  return kTerminal ? report::Style::kTerminal : report::Style::kPlain;
}

std::string bold(std::string_view text) {
  return style_of_stdout() == report::Style::kTerminal ? fmt::format("\x1b[1m{}\x1b[0m", text)
                                                       : std::string(text);
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
