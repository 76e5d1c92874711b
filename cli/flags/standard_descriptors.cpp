#include "cli/flags/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace shardlens::cli {

void open_standard_descriptors() {
  int opened = -1;
  do {                                     // the lowest free number is taken
    opened = ::open("/dev/null", O_RDWR);  // NOLINT(cppcoreguidelines-pro-type-vararg)
  } while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened > STDERR_FILENO) {
    ::close(opened);
  }
}

}  // namespace shardlens::cli
