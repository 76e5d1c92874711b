#include "cli/command/documents.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace shardlens::cli {
namespace {

struct Line {
  std::string_view text;  // with its newline
  int heading = 0;        // "##": 2; 0: no heading
  bool code = false;      // between fences, or a fence
};

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> out;
  bool fenced = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    Line line{.text = text.substr(0, end)};
    const bool fence = line.text.starts_with("```");
    line.code = fenced || fence;
    fenced = fenced != fence;
    if (!line.code && line.text.starts_with('#')) {
      line.heading = static_cast<int>(line.text.find_first_not_of('#'));
    }
    out.push_back(line);
    text.remove_prefix(end);
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// The text that replaces [words](target).
std::string link_text(std::string_view words, std::string_view target) {
  if (target.find(':') != std::string_view::npos) {
    return fmt::format("{} ({})", words, target);
  }
  std::string_view file = target.substr(0, target.find('#'));
  file.remove_prefix(std::min(file.rfind('/') + 1, file.size()));
  if (file.ends_with(".md")) {
    const std::string_view name = file.substr(0, file.size() - 3);
    for (const Document& document : documents()) {
      if (document.name == name) {
        return fmt::format("{} (shardlens docs {})",
                           words.ends_with(".md") ? document.title() : words, name);
      }
    }
  }
  return std::string(words);
}

// The text of lines that are no code, with links replaced by link_text().
std::string prose_without_links(std::string_view text) {
  std::string out;
  bool code = false;
  while (!text.empty()) {
    const size_t begin = text.starts_with("![") ? 2 : 1;
    if (!code && (text.starts_with('[') || begin == 2)) {
      const size_t middle = std::min(text.find(']'), text.size()), end = text.find(')', middle);
      if (text.substr(middle).starts_with("](") && end != std::string_view::npos) {
        const std::string_view words = text.substr(begin, middle - begin);
        out += begin == 2 ? fmt::format("[picture: {}]", words)
                          : link_text(words, text.substr(middle + 2, end - middle - 2));
        text.remove_prefix(end + 1);
        continue;
      }
    }
    code = code != text.starts_with('`');
    out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

std::string_view Document::title() const {
  std::string_view line = text.substr(0, text.find('\n'));
  line.remove_prefix(std::min(line.find_first_not_of("# "), line.size()));
  return line;
}

std::string without_links(std::string_view text) {
  std::string out, prose;  // a link may go on in the next line
  for (const Line& line : lines_of(text)) {
    if (line.code) {
      out += prose_without_links(prose);
      out += line.text;
      prose.clear();
    } else {
      prose += line.text;
    }
  }
  return out + prose_without_links(prose);
}

std::string sections_about(std::string_view text, std::string_view words) {
  const std::string wanted = lower(words);
  std::string out;
  int inside = 0;  // the heading of the section that is taken; 0: none
  for (const Line& line : lines_of(text)) {
    if (line.heading > 0 && (inside == 0 || line.heading <= inside)) {
      inside = lower(line.text).find(wanted) != std::string::npos ? line.heading : 0;
    }
    out += inside > 0 ? line.text : std::string_view();
  }
  return out;
}

}  // namespace shardlens::cli
