#pragma once

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/dist/world.h"

namespace shardlens::test {

// Runs `body` once per rank, ranks as threads that meet through a FileStore in a fresh directory,
// and rethrows the first failure.
inline void run_ranks(int world_size,
                      const std::function<void(dist::World&)>& body,
                      const std::function<void(dist::WorldOptions&)>& adjust = {}) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "shardlens_ranks_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    throw std::runtime_error("cannot make " + directory);
  }
  setenv("SHARDLENS_RENDEZVOUS", (directory + "/store").c_str(), 1);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        dist::WorldOptions options;
        options.rank = rank;
        options.world_size = world_size;
        options.timeout = std::chrono::seconds(20);
        if (adjust) {
          adjust(options);
        }
        const auto world = dist::World::join(options);
        body(*world);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  std::filesystem::remove_all(directory);
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace shardlens::test
