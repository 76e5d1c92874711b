#include "profiler/trace/json/decimal.h"

#include <limits>

namespace shardlens::trace {
namespace {

constexpr int kMaxExponent = 400;  // beyond this a number is 0 or does not fit, whatever its digits

// "e-3" → -3, "" → 0; nullopt if `text` is not an exponent.
std::optional<int> exponent_of(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  text.remove_prefix(1);  // e or E
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    text.remove_prefix(1);
  }
  if (text.empty()) {
    return std::nullopt;
  }
  int value = 0;
  for (const char c : text) {
    if (!is_digit(c)) {
      return std::nullopt;
    }
    value = value > kMaxExponent ? value : value * 10 + (c - '0');
  }
  return negative ? -value : value;
}

// The digits of a number without its decimal point.
struct Digits {
  std::string_view whole, fraction;
  [[nodiscard]] size_t size() const { return whole.size() + fraction.size(); }
  [[nodiscard]] char at(size_t i) const {
    return i < whole.size() ? whole[i] : fraction[i - whole.size()];
  }
};

}  // namespace

std::optional<int64_t> scaled_decimal(std::string_view text, int scale) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) {
    text.remove_prefix(1);
  }
  size_t i = 0;
  const auto run_of_digits = [&] {
    const size_t begin = i;
    while (i < text.size() && is_digit(text[i])) {
      ++i;
    }
    return text.substr(begin, i - begin);
  };
  Digits digits{run_of_digits(), {}};
  if (digits.whole.empty()) {
    return std::nullopt;
  }
  if (i < text.size() && text[i] == '.') {
    ++i;
    digits.fraction = run_of_digits();
    if (digits.fraction.empty()) {
      return std::nullopt;
    }
  }
  if (i < text.size() && text[i] != 'e' && text[i] != 'E') {
    return std::nullopt;
  }
  const std::optional<int> exponent = exponent_of(text.substr(i));
  if (!exponent) {
    return std::nullopt;
  }
  // The result is the first `point` digits, followed by zeros if there are fewer digits.
  const int64_t point = static_cast<int64_t>(digits.whole.size()) + *exponent + scale;
  uint64_t value = 0;
  for (int64_t k = 0; k < point; ++k) {
    const bool given = static_cast<uint64_t>(k) < digits.size();
    if (!given && value == 0) {
      break;
    }
    const auto digit = static_cast<uint64_t>(given ? digits.at(static_cast<size_t>(k)) - '0' : 0);
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, digit, &value)) {
      return std::nullopt;
    }
  }
  if (point >= 0 && static_cast<uint64_t>(point) < digits.size() &&
      digits.at(static_cast<size_t>(point)) >= '5') {
    if (__builtin_add_overflow(value, uint64_t{1}, &value)) {
      return std::nullopt;
    }
  }
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
}

}  // namespace shardlens::trace
