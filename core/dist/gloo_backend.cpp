// The wheel exports ProcessGroupGloo but ships no gloo headers; Debian's serve for the calls below.
// Headers only, in this one file: libgloo is never linked and no gloo type is constructed here.
#define USE_C10D_GLOO
#include <cstdlib>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"
#include "core/dist/backend.h"

namespace shardlens::dist {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname) {
  using Gloo = c10d::ProcessGroupGloo;
  // [Note: Flight recorder] c10d's flight recorder is one per process and crashes when two groups
  // enqueue at once from threads of their own (seen with torch 2.11: a map insertion without lock).
  // Our recorder keeps the same facts.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  try {
    auto options = Gloo::Options::create_default(timeout);
    if (!hostname.empty()) {
      options->devices = {Gloo::createDeviceForHostname(hostname)};
    }
    options->threads = 1;  // two are not FIFO
    return c10::make_intrusive<Gloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    throw RuntimeFault("[rank " + std::to_string(rank) + "] gloo: the " + std::to_string(size) +
                       " ranks did not connect: " + error.what());
  }
}

}  // namespace shardlens::dist
