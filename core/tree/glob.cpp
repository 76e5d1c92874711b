#include "core/tree/glob.h"

#include <span>
#include <vector>

#include <fmt/format.h>

namespace shardlens::plan {
namespace {

std::vector<std::string_view> components(std::string_view name) {
  std::vector<std::string_view> out;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    out.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) {
      return out;
    }
    name.remove_prefix(dot + 1);
    if (name.empty()) {
      out.emplace_back();  // a trailing dot
    }
  }
  return out;
}

// Matches `pattern` with `text`. `any` returns whether a pattern element matches any number of text
// elements, `same` whether it matches the given one. Linear in memory, at most |pattern|·|text|
// steps: after a mismatch only the last `any` element is retried.
template <typename P, typename T, typename Any, typename Same>
bool match(const P& pattern, const T& text, Any any, Same same) {
  size_t p = 0;
  size_t t = 0;
  size_t last_any = pattern.size();
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && any(pattern[p])) {
      last_any = p++;
      resume = t;
    } else if (p < pattern.size() && same(pattern[p], text[t])) {
      ++p;
      ++t;
    } else if (last_any != pattern.size()) {
      p = last_any + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && any(pattern[p])) {
    ++p;
  }
  return p == pattern.size();
}

bool component_matches(std::string_view pattern, std::string_view text) {
  return match(
      pattern, text, [](char c) { return c == '*'; }, [](char a, char b) { return a == b; });
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view fqn) {
  return match(
      components(glob), components(fqn), [](std::string_view c) { return c == "**"; },
      component_matches);
}

std::string glob_problem(std::string_view glob) {
  for (const std::string_view component : components(glob)) {
    if (component.empty()) {
      return fmt::format("glob '{}' has an empty component; expected names joined by single dots",
                         glob);
    }
    if (component != "**" && component.find("**") != std::string_view::npos) {
      return fmt::format("glob '{}': '**' must be a component of its own", glob);
    }
  }
  return "";
}

bool has_wildcard(std::string_view glob) {
  return glob.find('*') != std::string_view::npos;
}

}  // namespace shardlens::plan
