#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace shardlens::testing {

// One shardlens-worker, started as a launcher does. The destructor kills it.
class WorkerProcess {
 public:
  WorkerProcess(int rank,
                int world_size,
                const std::filesystem::path& store,
                const std::filesystem::path& messages,
                const std::vector<std::string>& flags)
      : messages_(messages) {
    std::vector<std::string> arguments{SHARDLENS_BIN_DIR "/shardlens-worker"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      environment.emplace_back(*entry);
    }
    environment.push_back("RANK=" + std::to_string(rank));
    environment.push_back("LOCAL_RANK=" + std::to_string(rank));
    environment.push_back("WORLD_SIZE=" + std::to_string(world_size));
    environment.push_back("SHARDLENS_RENDEZVOUS=" + store.string());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, messages_.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int failure =
        ::posix_spawn(&pid_, arguments.front().c_str(), &actions, nullptr,
                      pointers_to(arguments).data(), pointers_to(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) {
      throw std::runtime_error("cannot start " + arguments.front());
    }
  }
  WorkerProcess(WorkerProcess&& other) noexcept
      : messages_(std::move(other.messages_)), pid_(std::exchange(other.pid_, -1)) {}
  ~WorkerProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void send(int signal) const { ::kill(pid_, signal); }
  // Exit code, or 128 + signal.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] std::string messages() const {
    std::ifstream in(messages_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  static std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) {
      out.push_back(text.data());
    }
    out.push_back(nullptr);
    return out;
  }

  std::filesystem::path messages_;
  pid_t pid_ = -1;
};

// Starts all ranks of a world on this machine.
inline std::vector<WorkerProcess> start_world(int world_size,
                                              const std::filesystem::path& directory,
                                              const std::vector<std::string>& flags) {
  std::filesystem::remove(directory / "store");
  std::vector<WorkerProcess> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back(rank, world_size, directory / "store",
                       directory / ("messages." + std::to_string(rank)), flags);
  }
  return ranks;
}

}  // namespace shardlens::testing
