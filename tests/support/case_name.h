#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace shardlens::test {

// `text` as the name of a case of a parameterised test. GoogleTest allows letters, digits and
// underscores only: every run of other characters becomes one underscore, and none at the ends.
inline std::string case_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  if (name.ends_with('_')) {
    name.pop_back();
  }
  return name;
}

}  // namespace shardlens::test
