#include "profiler/trace/kineto/device_excerpt.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <unistd.h>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/kineto/kineto_reader.h"

namespace shardlens::trace {
namespace {

constexpr size_t kSamples = 64, kSampleBytes = size_t{64} << 10;
constexpr size_t kMostBeforeEvents = size_t{1} << 20;
constexpr std::string_view kNoMore = "{}]}";  // ends a text that was cut behind an event's comma

// Reads anywhere in a file.
class Pieces {
 public:
  explicit Pieces(const std::filesystem::path& path) : file_(path, {.most_bytes = kLargestTrace}) {}
  [[nodiscard]] uint64_t size() const { return file_.size(); }
  [[nodiscard]] std::string read(uint64_t begin, uint64_t end) const {
    std::string out(end - std::min(begin, end), '\0');
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::pread(file_.descriptor(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(begin + done));
      if (got <= 0) {
        break;
      }
      done += static_cast<size_t>(got);
    }
    out.resize(done);
    return out;
  }

 private:
  InputFile file_;
};

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

size_t behind_blanks(std::string_view text, size_t at) {
  while (at < text.size() && is_blank(text[at])) {
    ++at;
  }
  return at;
}

// Whether the character before `at`, blanks left out, is `c`; then `at` is its position.
bool is_behind(std::string_view text, char c, size_t& at) {
  size_t before = at;
  while (before > 0 && is_blank(text[before - 1])) {
    --before;
  }
  const bool is = before > 0 && text[before - 1] == c;
  at = is ? before - 1 : at;
  return is;
}

// Whether a key and its colon are at `at`.
bool is_key(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '"') {
    return false;
  }
  const size_t end = text.find_first_of("\"\\", at + 1);
  if (end == std::string_view::npos || text[end] != '"') {
    return false;
  }
  const size_t colon = behind_blanks(text, end + 1);
  return colon < text.size() && text[colon] == ':';
}

// Position of the first object from `from` on that follows another one, or npos. `}, {"key":` is
// in no string, because the quotes would end it.
size_t next_object(std::string_view text, size_t from) {
  for (size_t at = text.find('{', from); at != std::string_view::npos;
       at = text.find('{', at + 1)) {
    size_t before = at;
    if (is_behind(text, ',', before) && is_behind(text, '}', before) &&
        is_key(text, behind_blanks(text, at + 1))) {
      return at;
    }
  }
  return std::string_view::npos;
}

// The text before the first event, or "" if it is not at the beginning of the file.
std::string before_events(const Pieces& file) {
  constexpr std::string_view kKey = "\"traceEvents\"";
  std::string text = file.read(0, std::min<uint64_t>(file.size(), kMostBeforeEvents));
  for (size_t at = text.find(kKey); at != std::string::npos; at = text.find(kKey, at + 1)) {
    const size_t colon = behind_blanks(text, at + kKey.size());
    const size_t list = behind_blanks(text, colon + 1);
    if (colon < text.size() && text[colon] == ':' && list < text.size() && text[list] == '[') {
      text.resize(list + 1);
      return text;
    }
  }
  return "";
}

bool is_device_work(const Event& event) {
  return event.category == Category::kKernel || event.category == Category::kGpuMemcpy ||
         event.category == Category::kGpuMemset;
}

class Excerpt {
 public:
  Excerpt(const std::filesystem::path& path, size_t events)
      : name_(path.string()), file_(path), wanted_(events), head_(before_events(file_)) {}

  std::optional<Trace> read() {
    if (head_.empty() || file_.size() <= head_.size()) {
      return std::nullopt;
    }
    const uint64_t tail_at =
        std::max<uint64_t>(head_.size(), file_.size() - std::min(file_.size(), kTailBytes));
    std::string tail = file_.read(tail_at, file_.size());
    const size_t last_event = next_object(tail, 0);
    const uint64_t end_of_events =
        last_event == std::string::npos ? file_.size() : tail_at + last_event;
    tail = last_event == std::string::npos ? std::string(kNoMore) : tail.substr(last_event);

    size_t last = kSamples;  // one past the last sample with a device's work
    while (last > 0 && !has_device_work(last - 1)) {
      --last;
    }
    if (last == 0) {
      return std::nullopt;
    }
    const uint64_t end = event_from(place(last), end_of_events);
    size_t first = last - 1;
    while (first > 0 && place(first) + bytes_wanted() > end && has_device_work(first - 1)) {
      --first;
    }
    const uint64_t enough = end - std::min(end, bytes_wanted());
    const uint64_t begin = event_from(std::max(place(first), enough), end);
    return parse_kineto(head_ + file_.read(begin, end) + tail, name_);
  }

 private:
  static constexpr uint64_t kTailBytes = uint64_t{256} << 10;

  // Where a sample begins; that of kSamples is the end.
  [[nodiscard]] uint64_t place(size_t sample) const {
    return head_.size() + (file_.size() - head_.size()) / kSamples * sample;
  }

  // The first event that begins at or behind `at` and within a sample's length; `end`: none.
  [[nodiscard]] uint64_t event_from(uint64_t at, uint64_t end) const {
    const size_t found = next_object(file_.read(at, std::min(at + kSampleBytes, end)), 0);
    return found == std::string::npos ? end : std::min(at + found, end);
  }

  bool has_device_work(size_t sample) {
    const uint64_t at = place(sample);
    const std::string text = file_.read(at, std::min(at + kSampleBytes, file_.size()));
    const size_t begin = next_object(text, 0);
    size_t end = begin;
    for (size_t next = begin; next != std::string::npos; next = next_object(text, next + 1)) {
      end = next;
    }
    if (begin == end) {
      return false;
    }
    try {
      const Trace trace =
          parse_kineto(head_ + text.substr(begin, end - begin) + std::string(kNoMore), name_);
      sampled_bytes_ += end - begin;
      sampled_events_ += trace.events.size();
      return std::any_of(trace.events.begin(), trace.events.end(), is_device_work);
    } catch (const InputError&) {
      return false;
    }
  }

  [[nodiscard]] uint64_t bytes_wanted() const {
    return wanted_ * (sampled_bytes_ / std::max<uint64_t>(sampled_events_, 1) + 1);
  }

  std::string name_;
  Pieces file_;
  size_t wanted_;
  std::string head_;
  uint64_t sampled_bytes_ = 0, sampled_events_ = 0;
};

}  // namespace

bool allows_excerpt(const std::filesystem::path& path) {
  try {
    const std::string magic = Pieces(path).read(0, 4);
    return !is_compressed(magic);
  } catch (const InputError&) {
    return false;
  }
}

std::optional<Trace> device_excerpt(const std::filesystem::path& path, size_t events) {
  Excerpt excerpt(path, events);
  try {
    return excerpt.read();
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace shardlens::trace
