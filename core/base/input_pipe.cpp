#include "core/base/input_pipe.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {

constexpr int kWaitSeconds = 10;

InputPipe::InputPipe(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_fifo(path, ignored)) {
    return;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  read_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (read_ < 0) {
    throw InputError(path.string(), fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  pollfd waits{.fd = read_, .events = POLLIN, .revents = 0};
  if (::poll(&waits, 1, kWaitSeconds * 1000) < 1 || (waits.revents & POLLIN) == 0) {
    ::close(read_);
    throw InputError(path.string(), fmt::format("is a pipe into which nothing was written for {} s",
                                                kWaitSeconds));
  }
  // The writer may have closed its end already, and then the next open() would wait for another.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  write_ = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

InputPipe::~InputPipe() {
  for (const int fd : {read_, write_}) {
    if (fd >= 0) {
      ::close(fd);
    }
  }
}

}  // namespace shardlens
