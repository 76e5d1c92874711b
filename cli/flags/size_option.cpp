#include "cli/flags/size_option.h"

#include <CLI/Error.hpp>
#include <CLI/Validators.hpp>
#include <fmt/format.h>

namespace shardlens::cli {

std::string size_to_bytes(std::string& text) {
  if (!text.empty() && text.find_first_not_of("+-.0123456789") == std::string::npos) {
    return fmt::format("'{}' has no unit; expected a size such as 80GiB or 512MiB ({}B: bytes)",
                       text, text);
  }
  const std::string given = text;
  std::string wrong = "no number";
  try {
    if (!text.empty() && text.front() >= '0' && text.front() <= '9') {
      wrong = CLI::AsSizeValue(/*kb_is_1000=*/false)(text);
    }
  } catch (const CLI::Error& error) {
    wrong = error.what();
  }
  return wrong.empty() ? "" : fmt::format("'{}': expected a size such as 80GiB or 512MiB", given);
}

}  // namespace shardlens::cli
