#pragma once

#include <cerrno>
#include <utility>

#include <unistd.h>

namespace shardlens {

// A file descriptor that is closed with the object.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool open() const noexcept { return fd_ >= 0; }
  // Returns 0 or errno. The descriptor is closed in either case.
  int reset() noexcept {
    return fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR ? errno : 0;
  }

 private:
  int fd_ = -1;
};

}  // namespace shardlens
