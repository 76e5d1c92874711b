#include "core/base/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/error.h"

namespace shardlens {
namespace {

[[noreturn]] void fail() {
  throw RuntimeFault(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

}  // namespace

void write_stdout(const Shown& text) {
  write_data(text.text());
}

void write_data(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail();
  }
}

void flush_stdout() {
  if (std::fflush(stdout) != 0) {
    fail();
  }
}

void write_stderr(const Shown& text) {
  (void)std::fwrite(text.text().data(), 1, text.text().size(), stderr);
}

}  // namespace shardlens
