#include "profiler/record/host/rank_now.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files/input_file.h"
#include "profiler/record/host/now_layout.h"

namespace shardlens::record {
namespace {

// Reads copies of a page. A mapping would be faster, but would raise SIGBUS if the file is
// truncated meanwhile.
class PageReader {
 public:
  explicit PageReader(const std::filesystem::path& path)
      : fd_(try_open_input(path, {.most_bytes = kNowBytes})) {}
  ~PageReader() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  // False if the file does not exist or does not have the size of a page.
  bool read() {
    struct stat info {};
    return fd_ >= 0 && ::fstat(fd_, &info) == 0 && info.st_size == static_cast<off_t>(kNowBytes) &&
           ::pread(fd_, page_.get(), sizeof(NowLayout), 0) ==
               static_cast<ssize_t>(sizeof(NowLayout));
  }
  [[nodiscard]] const NowLayout& page() const { return *page_; }

 private:
  int fd_;
  std::unique_ptr<NowLayout> page_ = std::make_unique<NowLayout>();  // a copy
};

template <typename T>
T get(const std::atomic<T>& field) {
  return field.load(std::memory_order_relaxed);
}

std::vector<std::string> unit_names(const NowLayout& page) {
  std::vector<std::string> names;
  const char* at = page.names.data();
  const char* const end = at + page.names.size();
  for (uint32_t i = 0; i < get(page.unit_count) && at < end; ++i) {
    const size_t length = ::strnlen(at, static_cast<size_t>(end - at));
    names.emplace_back(at, length);
    at += length + 1;
  }
  return names;
}

std::string unit_name(const std::vector<std::string>& names, uint32_t unit) {
  return unit < names.size() ? names[unit] : fmt::format("unit {}", unit);
}

// Enumerators come from a file: a value out of range is read as absent.
void read_action(const NowLayout& page, const std::vector<std::string>& names, RankNow& now) {
  const uint32_t op = get(page.op);
  const uint32_t stream = get(page.stream);
  if (op >= schedule::kOpCount || stream >= schedule::kStreamCount) {
    return;
  }
  now.action = get(page.action);
  now.op = static_cast<schedule::Op>(op);
  now.stream = static_cast<schedule::Stream>(stream);
  now.unit = unit_name(names, get(page.unit));
  if (now.op != schedule::Op::kStreamWait && now.op != schedule::Op::kHostWait) {
    return;
  }
  const uint32_t event = get(page.event);
  const EventSource& source = page.events[event % NowLayout::kEvents];
  if (get(source.event) == event && get(source.op) < schedule::kOpCount) {
    now.waits_for = static_cast<schedule::Op>(get(source.op));
    now.waits_for_unit = unit_name(names, get(source.unit));
  }
}

RankNow read_page(const NowLayout& page) {
  RankNow now;
  const std::vector<std::string> names = unit_names(page);
  now.finished = get(page.finished) != 0;
  now.step = get(page.step);
  now.in_step = get(page.in_step) != 0;
  if (get(page.hook) < kHookCount) {
    now.hook = static_cast<Hook>(get(page.hook));
    now.hook_unit = unit_name(names, get(page.hook_unit));
  }
  if (get(page.action) != 0) {
    read_action(page, names, now);
  }
  now.issued = get(page.issued);
  now.completed = get(page.completed);
  const uint64_t last = get(page.last_completed);
  if ((last >> 32) < kCollectiveKindCount) {
    now.last_completed = static_cast<CollectiveKind>(last >> 32);
    now.last_completed_unit = unit_name(names, static_cast<uint32_t>(last));
  }
  return now;
}

std::string in_brackets(const std::string& unit) {
  return unit.empty() ? " (root)" : " (" + unit + ")";
}

}  // namespace

std::optional<RankNow> read_rank_now(const std::filesystem::path& path) {
  PageReader reader(path);
  if (!reader.read() || get(reader.page().magic) != kNowMagic) {
    return std::nullopt;
  }
  RankNow now;
  for (int attempt = 0; attempt < 100; ++attempt) {
    // Reads three times: the version before, the page, and the version after.
    const uint32_t before = get(reader.page().version);
    if (!reader.read()) {
      break;
    }
    now = read_page(reader.page());
    now.torn = before % 2 != 0 || !reader.read() || get(reader.page().version) != before;
    if (!now.torn) {
      break;
    }
    std::this_thread::yield();
  }
  return now;
}

std::string RankNow::sentence() const {
  if (step < 0) {
    return "before the first step";
  }
  std::string text = fmt::format("{} {}", in_step ? "step" : "after step", step);
  if (hook) {
    text += fmt::format(", hook {}{}", name_of(*hook), in_brackets(hook_unit));
  }
  if (action != 0) {
    text += fmt::format(", action {} {}{}", action, schedule::name_of(op), in_brackets(unit));
  }
  if (waits_for) {
    text += fmt::format(" waiting for {}{}", schedule::name_of(*waits_for),
                        in_brackets(waits_for_unit));
  }
  if (issued != 0) {
    text += fmt::format("; {} of {} collectives complete", std::min(completed, issued), issued);
  }
  if (last_completed) {
    text += fmt::format(", the last was {}{}", name_of(*last_completed),
                        in_brackets(last_completed_unit));
  }
  return text;
}

std::filesystem::path now_path(const std::filesystem::path& directory, int rank) {
  return directory / fmt::format("rank{}.now", rank);
}

std::filesystem::path spool_path(const std::filesystem::path& directory, int rank) {
  return directory / fmt::format("rank{}.spool", rank);
}

}  // namespace shardlens::record
