#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"

// How values of a summary become JSON values and back; used only by summary_file.cpp.
//
// [Note: One description] SummaryWriter and SummaryReader have the same members, so one description
// of a structure (summary_fields.h) both writes and reads it. A word is a string or an enumerator,
// which is written as name_of() spells it.
namespace shardlens::analysis {

// Limits of what a summary may contain, so that no sum over many ranks overflows, and a damaged
// file needs little memory. They are far beyond any run: the sizes and durations of a rank sum to
// less than 2 PB and 26 days, and its times lie within three days.
struct SummaryLimits {
  static constexpr uint64_t kLargestSum = uint64_t{1} << 51;
  static constexpr Nanoseconds kLatest = Nanoseconds{1} << 61;   // in the year 2043
  static constexpr Nanoseconds kLongest = Nanoseconds{1} << 48;  // three days
  static constexpr size_t kMostRows = 1'000'000;                 // of one table

  [[noreturn]] void fail(const std::string& what) const { throw InputError(where, what); }
  void count(int64_t value) {
    const uint64_t size = value < 0 ? ~static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    if (size > kLargestSum - sum) {
      fail("numbers larger than those of any run");
    }
    sum += size;
  }
  [[nodiscard]] Nanoseconds after(Nanoseconds from, int64_t step) const {
    if (step > 2 * kLongest || step < -2 * kLongest || from + step > base + kLongest ||
        from + step < base - kLongest) {
      fail("times further apart than those of any run");
    }
    return from + step;
  }
  [[nodiscard]] Nanoseconds step(Nanoseconds from, Nanoseconds to) const {
    // In unsigned numbers, because the difference of two times of a damaged trace may overflow.
    const auto out = static_cast<int64_t>(static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
    (void)after(from, out);
    return out;
  }

  std::string where;  // the file, for messages
  Nanoseconds base = 0;
  uint64_t sum = 0;
};

inline constexpr uint32_t kNone = 0xffffffffU;  // kNoIndex, kNoUnit

template <typename T>
concept Word = std::is_enum_v<T> || std::same_as<T, std::string>;

// How many enumerators a type has, from 0; summary_fields.h has one for each type.
template <typename E>
inline constexpr int kEnumerators = 0;

template <typename E>
std::string word_of(const E& value) {
  if constexpr (std::is_enum_v<E>) {
    return std::string(name_of(value));
  } else {
    return value;
  }
}

template <typename E>
E from_word(const std::string& word, const SummaryLimits& limits) {
  if constexpr (std::is_enum_v<E>) {
    static_assert(kEnumerators<E> > 0);
    for (int i = 0; i < kEnumerators<E>; ++i) {
      if (name_of(static_cast<E>(i)) == word) {
        return static_cast<E>(i);
      }
    }
    limits.fail(fmt::format("an unknown word '{}'", word.substr(0, 40)));
  } else {
    return word;
  }
}

}  // namespace shardlens::analysis
