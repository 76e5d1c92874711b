#include "cli/capture/logged_capture.h"

#include <deque>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/files/output_file.h"
#include "core/files/output_folder.h"

#include "cli/capture/capture.h"
#include "cli/capture/capture_lock.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTold = 12;  // number of last lines in an error message

// The log file of the workers' output, next to the capture.
class Log {
 public:
  explicit Log(const fs::path& path)
      : path_(path), file_(OutputFolder::of(path), path.filename().string()) {
    file_.keep();
  }
  void add(int rank, std::string_view line) {
    const Shown who = line.starts_with("[rank ") ? Shown() : show("[rank {}] ", rank);
    const std::string text = (who + as_shown(line) + "\n").text();
    reason_ = reason_ == 0 ? write_all(file_.descriptor(), text) : reason_;
    last_.emplace_back(line);
    if (last_.size() > kTold) {
      last_.pop_front();
    }
  }
  void require_written() const {
    if (reason_ != 0) {
      throw WriteFault(path_, reason_);
    }
  }
  [[nodiscard]] Shown last_lines() const { return show_joined(last_, "\n"); }

 private:
  fs::path path_;
  OutputFile file_;
  int reason_ = 0;  // why a line could not be written
  std::deque<std::string> last_;
};

}  // namespace

CaptureFolder::CaptureFolder(std::string_view flag, const fs::path& wanted) : path_(wanted) {
  if (!wanted.empty()) {
    bool empty = false;
    try {
      const OutputFolder folder = OutputFolder::make(path_);
      lock_.emplace(capture_place(path_, flag));
      empty = folder.names() == std::vector<std::string>{std::string(kCaptureLock)};
    } catch (const WriteFault&) {  // also a file in the place of the directory
    }
    if (!empty) {
      throw UsageError(fmt::format("{}: {} is not an empty directory", flag, path_.string()));
    }
    return;
  }
  temporary_ = std::make_unique<PrivateDirectory>();
  path_ = OutputFolder(temporary_->path()).make_folder("captures").path();
}

void capture_logged(const RunOptions& options, std::optional<std::chrono::milliseconds> longest) {
  Log log(options.out.string() + ".log");
  try {
    (void)capture(
        options, [&log](int rank, Output, std::string_view line) { log.add(rank, line); }, longest);
  } catch (const Error& error) {
    throw Error(error.code(), show("a capture failed: {}\n{}", error.shown(), log.last_lines()));
  }
  log.require_written();
}

}  // namespace shardlens::cli
