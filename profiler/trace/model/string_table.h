#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace shardlens::trace {

using StringId = uint32_t;
inline constexpr StringId kEmptyString = 0;  // ""

// Stores each distinct string once; ids count from 0 in order of first appearance.
//
// Ownership  owns the text; views stay valid as long as the table, also after a move.
// Threads    not thread-safe while interning.
class StringTable {
 public:
  StringTable() { intern(""); }
  StringTable(const StringTable& other) : StringTable() { copy_from(other); }
  StringTable& operator=(const StringTable& other) {
    if (this != &other) {
      *this = StringTable(other);
    }
    return *this;
  }
  StringTable(StringTable&&) = default;
  StringTable& operator=(StringTable&&) = default;
  ~StringTable() = default;

  // Complexity: O(length of text); no allocation for a known string.
  StringId intern(std::string_view text) {
    const uint64_t hash = hash_of(text);
    size_t slot = hash & mask();
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (; slots_[slot].id != kFree; slot = (slot + 1) & mask()) {
      if (slots_[slot].tag == tag && texts_[slots_[slot].id] == text) {
        return slots_[slot].id;
      }
    }
    const auto id = static_cast<StringId>(texts_.size());
    slots_[slot] = {tag, id};
    texts_.push_back(store(text));
    if (texts_.size() * 2 > slots_.size()) {
      rehash();
    }
    return id;
  }
  [[nodiscard]] std::string_view view(StringId id) const { return texts_[id]; }
  [[nodiscard]] size_t size() const { return texts_.size(); }

  // Mixes 16 bytes at a time by 128-bit multiplications, similar to wyhash.
  static uint64_t hash_of(std::string_view text) {
    uint64_t hash = text.size() * kFirstFactor;
    const char* at = text.data();
    size_t left = text.size();
    for (; left >= 16; at += 16, left -= 16) {
      hash = mix(hash ^ word(at, 8), word(at + 8, 8) ^ kSecondFactor);
    }
    if (left >= 8) {
      hash = mix(hash ^ word(at, 8), word(at + left - 8, 8) ^ kSecondFactor);
    } else if (left > 0) {
      hash = mix(hash ^ word(at, left), kSecondFactor);
    }
    return mix(hash, kFirstFactor);
  }

 private:
  static constexpr uint32_t kFree = 0xffffffffU;
  static constexpr size_t kBlockBytes = size_t{1} << 16, kFirstSlots = 64;
  static constexpr uint64_t kFirstFactor = 0x9E3779B97F4A7C15ULL,
                            kSecondFactor = 0xD6E8FEB86659FD93ULL;
  struct Slot {
    uint32_t tag = 0;
    StringId id = kFree;
  };

  static uint64_t word(const char* at, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, at, bytes);
    return value;
  }
  static uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  [[nodiscard]] size_t mask() const { return slots_.size() - 1; }

  std::string_view store(std::string_view text) {
    if (text.size() > left_) {
      const size_t bytes = text.size() > kBlockBytes / 4 ? text.size() : kBlockBytes;
      blocks_.push_back(std::make_unique<char[]>(bytes));
      if (bytes != kBlockBytes) {  // a long text gets its own block; the current block stays in use
        std::memcpy(blocks_.back().get(), text.data(), text.size());
        return {blocks_.back().get(), text.size()};
      }
      free_ = blocks_.back().get();
      left_ = bytes;
    }
    char* const at = free_;
    if (!text.empty()) {
      std::memcpy(at, text.data(), text.size());
      free_ += text.size();
      left_ -= text.size();
    }
    return {at, text.size()};
  }

  void rehash() {
    slots_.assign(slots_.size() * 2, Slot{});
    for (size_t id = 0; id < texts_.size(); ++id) {
      const uint64_t hash = hash_of(texts_[id]);
      size_t slot = hash & mask();
      while (slots_[slot].id != kFree) {
        slot = (slot + 1) & mask();
      }
      slots_[slot] = {static_cast<uint32_t>(hash >> 32), static_cast<StringId>(id)};
    }
  }

  void copy_from(const StringTable& other) {
    for (const std::string_view text : other.texts_) {
      intern(text);
    }
  }

  std::vector<std::unique_ptr<char[]>> blocks_;
  char* free_ = nullptr;
  size_t left_ = 0;
  std::vector<std::string_view> texts_;  // in blocks_
  std::vector<Slot> slots_ = std::vector<Slot>(kFirstSlots);
};

}  // namespace shardlens::trace
