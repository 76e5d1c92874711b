#include "cli/capture/logged_capture.h"

#include <deque>
#include <fstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/show.h"

#include "cli/capture/capture.h"
#include "cli/capture/capture_lock.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTold = 12;  // number of last lines in an error message

// The log file of the workers' output, next to the capture.
class Log {
 public:
  explicit Log(const fs::path& path) : path_(path), file_(path) {}
  void add(int rank, std::string_view line) {
    file_ << (line.starts_with("[rank ") ? Shown() : show("[rank {}] ", rank)).text()
          << as_shown(line).text() << '\n';
    last_.emplace_back(line);
    if (last_.size() > kTold) {
      last_.pop_front();
    }
  }
  void close() {
    file_.close();
    if (!file_) {
      throw RuntimeFault(fmt::format("cannot write {}", path_.string()));
    }
  }
  [[nodiscard]] Shown last_lines() const { return show_joined(last_, "\n"); }

 private:
  fs::path path_;
  std::ofstream file_;
  std::deque<std::string> last_;
};

}  // namespace

CaptureFolder::CaptureFolder(std::string_view flag, const fs::path& wanted) : path_(wanted) {
  if (!wanted.empty()) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (!error) {
      lock_.emplace(capture_place(path_, flag));
    }
    for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().filename() != kCaptureLock) {
        error = std::make_error_code(std::errc::directory_not_empty);
        break;
      }
    }
    if (error) {
      throw UsageError(fmt::format("{}: {} is not an empty directory", flag, path_.string()));
    }
    return;
  }
  temporary_ = std::make_unique<PrivateDirectory>();
  path_ = temporary_->path() / "captures";
  fs::create_directory(path_);
}

void capture_logged(const RunOptions& options, std::optional<std::chrono::milliseconds> longest) {
  Log log(options.out.string() + ".log");
  try {
    (void)capture(
        options, [&log](int rank, Output, std::string_view line) { log.add(rank, line); }, longest);
  } catch (const Error& error) {
    throw Error(error.code(), show("a capture failed: {}\n{}", error.shown(), log.last_lines()));
  }
  log.close();
}

}  // namespace shardlens::cli
