#include "cli/capture/capture_flags.h"

#include <algorithm>

#include <CLI/App.hpp>
#include <fmt/format.h>

#include "core/base/error.h"

#include "cli/flags/parse_flags.h"

namespace shardlens::cli {

RunOptions capture_flags(std::vector<std::string> words, std::string_view name) {
  words.erase(std::remove(words.begin(), words.end(), ""), words.end());
  for (const std::string& word : words) {
    if (word == "--out" || word.starts_with("--out=")) {
      throw UsageError(
          fmt::format("{}: leave out --out; this command chooses where captures are kept", name));
    }
  }
  RunOptions options;
  CLI::App app("", "shardlens capture");
  add_run_options(app, options);
  words.insert(words.end(), {"--out", "-"});
  if (words.size() == 2 || !parse_flags(app, name, words)) {
    throw UsageError(
        fmt::format("{}: expected the flags of a capture, such as "
                    "\"--model DIR --tokens FILE\"",
                    name));
  }
  return options;
}

}  // namespace shardlens::cli
