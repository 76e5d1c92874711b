#pragma once

#include <string>
#include <vector>

namespace shardlens::cli {

// Columns aligned with spaces under a bold header: text of the first column to the left, numbers to
// the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void align_left();  // every column holds text
  void row(std::vector<std::string> cells);
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  bool left_ = false;
};

}  // namespace shardlens::cli
