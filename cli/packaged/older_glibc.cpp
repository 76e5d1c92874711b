// Functions that Debian's libraries take from glibc 2.35 and 2.36, so that the program of the
// Python package runs with older ones.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include <sys/random.h>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    std::abort();  // as glibc's: there is no value to return instead
  }
  return value;
}

extern "C" double hypot(double x, double y) noexcept {
  double large = std::abs(x), small = std::abs(y);
  if (large < small) {
    std::swap(large, small);
  }
  if (large == 0 || std::isinf(large)) {
    return large;
  }
  const double ratio = small / large;
  return large * std::sqrt(1 + ratio * ratio);
}
