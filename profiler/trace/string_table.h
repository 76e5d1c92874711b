#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace shardlens::trace {

using StringId = uint32_t;
inline constexpr StringId kEmptyString = 0;  // ""

// Each distinct string once; ids count from 0 in order of first appearance.
//
// Ownership  owns the text; views stay valid as long as the table, also when it moves.
// Threads    not thread-safe while interning.
class StringTable {
 public:
  StringTable() { intern(""); }
  StringTable(const StringTable& other) { copy_from(other); }
  StringTable& operator=(const StringTable& other) {
    if (this != &other) {
      texts_.clear();
      ids_.clear();
      copy_from(other);
    }
    return *this;
  }
  StringTable(StringTable&&) = default;
  StringTable& operator=(StringTable&&) = default;
  ~StringTable() = default;

  StringId intern(std::string_view text) {
    if (const auto found = ids_.find(text); found != ids_.end()) {
      return found->second;
    }
    const auto id = static_cast<StringId>(texts_.size());
    ids_.emplace(texts_.emplace_back(text), id);
    return id;
  }
  [[nodiscard]] std::string_view view(StringId id) const { return texts_[id]; }
  [[nodiscard]] size_t size() const { return texts_.size(); }

 private:
  void copy_from(const StringTable& other) {
    for (const std::string& text : other.texts_) {
      intern(text);
    }
  }

  std::deque<std::string> texts_;  // a deque keeps addresses, which ids_ refers to
  std::unordered_map<std::string_view, StringId> ids_;
};

}  // namespace shardlens::trace
