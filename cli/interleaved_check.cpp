#include "cli/interleaved_check.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <vector>

#include <CLI/StringTools.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/statistics.h"

extern char** environ;

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFirstLook = 3;  // pairs
constexpr std::chrono::hours kLongestCapture{6};
constexpr std::chrono::milliseconds kPoll{20};

class Directory {
 public:
  explicit Directory(const fs::path& wanted) : path_(wanted), keep_(!wanted.empty()) {
    if (keep_) {
      std::error_code error;
      fs::create_directories(path_, error);
      if (error || !fs::is_empty(path_, error)) {
        throw UsageError(fmt::format("--out: {} is no empty directory", path_.string()));
      }
    } else {
      std::string name = (fs::temp_directory_path() / "shardlens-check-XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) {
        throw RuntimeFault(fmt::format("cannot make {}: {}", name, std::strerror(errno)));
      }
      path_ = name;
    }
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    if (!keep_) {
      std::error_code ignored;
      fs::remove_all(path_, ignored);
    }
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool keep_;
};

std::vector<std::string> split(const std::string& flags, const char* option) {
  std::vector<std::string> words = CLI::detail::split_up(flags);
  words.erase(std::remove(words.begin(), words.end(), ""), words.end());
  for (const std::string& word : words) {
    if (word == "--out" || word.starts_with("--out=")) {
      throw UsageError(fmt::format("{}: leave --out away, check says where captures go", option));
    }
  }
  if (words.empty()) {
    throw UsageError(
        fmt::format("{}: expected the flags of a capture, such as "
                    "\"--model DIR --tokens FILE\"",
                    option));
  }
  return words;
}

std::string last_lines(const fs::path& log) {
  std::ifstream in(log);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  constexpr size_t kMost = 800;
  return text.size() > kMost ? text.substr(text.size() - kMost) : text;
}

// The exit code; 128 + signal of what a signal ended.
int wait_for(pid_t child) {
  const auto end = std::chrono::steady_clock::now() + kLongestCapture;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGTERM);
      waitpid(child, &status, 0);
      throw RuntimeFault("a capture took longer than 6 hours and was ended");
    }
    std::this_thread::sleep_for(kPoll);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

check::RunSummary capture(const std::vector<std::string>& flags, const fs::path& out) {
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  std::vector<std::string> words{self, "capture"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"--out", out.string()});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const std::string log = out.string() + ".log";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, self.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw RuntimeFault(fmt::format("cannot start {}: {}", self, std::strerror(failed)));
  }
  if (const int code = wait_for(child); code != 0) {
    throw Error(code <= static_cast<int>(ExitCode::kRuntime) ? static_cast<ExitCode>(code)
                                                             : ExitCode::kRuntime,
                fmt::format("a capture failed with exit code {}:\n{}", code, last_lines(log)));
  }
  check::RunSummary summary = check::read_runs(out).front();
  summary.source = out.filename().string();
  return summary;
}

// Whether no gate can have risen above its limit.
bool surely_passes(const check::CheckResult& result) {
  return result.verdict != check::Verdict::kRegression && !result.metrics.empty() &&
         std::all_of(result.metrics.begin(), result.metrics.end(), [](const auto& m) {
           return !m.gates || m.effect.change + m.half_width < m.limit;
         });
}

}  // namespace

check::CheckResult check_interleaved(const InterleavedCheck& what,
                                     const check::CheckOptions& options) {
  if (what.runs < kFirstLook) {
    throw UsageError(fmt::format("--runs: expected {} or more, found {}", kFirstLook, what.runs));
  }
  const std::vector<std::string> candidate_flags = split(what.run, "--run"),
                                 baseline_flags = split(what.against, "--against");
  const Directory directory(what.out);
  std::vector<check::RunSummary> baseline, candidate;
  check::CheckOptions paired = options;
  paired.paired = true;
  const auto looks = static_cast<int>(what.runs - kFirstLook + 1);
  for (int64_t pair = 1;; ++pair) {
    fmt::print(stderr, "pair {} of at most {}\n", pair, what.runs);
    for (const bool candidate_now : {pair % 2 == 0, pair % 2 != 0}) {
      const auto name = fmt::format("{}-{}", candidate_now ? "candidate" : "baseline", pair);
      (candidate_now ? candidate : baseline)
          .push_back(
              capture(candidate_now ? candidate_flags : baseline_flags, directory.path() / name));
    }
    const int64_t look = pair - kFirstLook + 1;
    paired.alpha = look >= 1 ? check::alpha_of_look(static_cast<int>(look), looks, options.alpha)
                             : options.alpha;
    check::CheckResult result = check::check_runs(baseline, candidate, paired);
    const bool last = pair == what.runs, decided = look >= 1 && surely_passes(result);
    // Without metrics the runs are not comparable at all: more of them would not help.
    if (last || decided || result.metrics.empty() ||
        result.verdict == check::Verdict::kRegression) {
      result.alpha = options.alpha;  // of all looks together
      if (!last) {
        result.notes.push_back(
            fmt::format("decided after {} of {} pairs of runs", pair, what.runs));
      }
      return result;
    }
  }
}

}  // namespace shardlens::cli
