// A function that Debian's libstdc++ takes from glibc 2.36, so that the program of the Python
// package runs with older ones.
#include <cstdint>
#include <cstdlib>

#include <sys/random.h>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    std::abort();  // as glibc's: there is no value to return instead
  }
  return value;
}
