#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardlens::cli {

// One page of docs/ that users need, compiled into the program.
struct Document {
  std::string_view name, text;  // "plan"; Markdown

  // The text of the first heading.
  [[nodiscard]] std::string_view title() const;
};

// In alphabetical order. Defined in a file that CMake makes.
[[nodiscard]] std::span<const Document> documents();

// `text` for a terminal: links to pages become the command that prints them, other links and
// pictures what they are called. Web addresses stay.
[[nodiscard]] std::string without_links(std::string_view text);

// The sections of `text`, each with those inside it, whose headings contain `words`, in any case.
// "": there are none.
[[nodiscard]] std::string sections_about(std::string_view text, std::string_view words);

}  // namespace shardlens::cli
