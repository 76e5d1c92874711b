#include "profiler/trace/kineto/kineto_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/json/decimal.h"
#include "profiler/trace/json/json_cursor.h"
#include "profiler/trace/json/token_window.h"
#include "profiler/trace/kineto/event_builder.h"
#include "profiler/trace/kineto/foreign_files.h"
#include "profiler/trace/kineto/top_level.h"
#include "profiler/trace/model/latest_time.h"
#include "profiler/trace/model/part_sink.h"

namespace shardlens::trace {
namespace {

constexpr int64_t kEpochMicroseconds =
    1'000'000'000'000'000;  // September 2001: no recording lasts that long

constexpr size_t kMostKeys = 64;

class Reader {
 public:
  Reader(ByteSource& text, const std::string& source, const ReadOptions& options)
      : window_(text, source, options.window_bytes),
        cursor_(window_, source),
        builder_(trace_, cursor_, options),
        parts_(options.progress == nullptr ? nullptr : options.progress->parts) {
    trace_.metadata.source = source;
  }

  Trace run() {
    if (window_.last() && window_.end() == 0) {
      throw InputError(trace_.metadata.source, "the file is empty");
    }
    size_t done = 0;  // number of the window's tokens that have been processed
    while (true) {
      cursor_.place(done);
      try {
        while (place_ != Place::kEnd) {
          take_piece();
          done = cursor_.token();
        }
        if (done == window_.count() && window_.last()) {
          break;
        }
        if (done < window_.count()) {
          if (!has_events_) {
            refuse();
          }
          cursor_.fail(cursor_.byte(), "there is more text after the end of the JSON value");
        }
      } catch (const Incomplete&) {
        // The piece continues in the next window.
      }
      offer(false);
      window_.advance(done);
      done = 0;
    }
    if (!has_events_) {
      refuse();
    }
    builder_.finish();
    complete(trace_);
    offer(true);
    if (bare_list_ && entries_ > 0 && trace_.events.empty() && trace_.tracks.empty()) {
      throw NotATrace(trace_.metadata.source,
                      "not a trace: none of the list's entries is an event with \"ph\" and \"ts\"");
    }
    return std::move(trace_);
  }

 private:
  // What is at the cursor.
  enum class Place : uint8_t {
    kBegin,
    kFirstMember,
    kMember,
    kFirstEvent,
    kEvent,
    kMemberEnd,
    kEnd
  };

  // Takes one piece of the file and the comma or bracket after it, or throws without having taken
  // any of it.
  void take_piece() {
    switch (place_) {
      case Place::kBegin:
        begin();
        break;
      case Place::kFirstMember:
        place_ = cursor_.take_if('}') ? Place::kEnd : member();
        break;
      case Place::kMember:
        place_ = member();
        break;
      case Place::kFirstEvent:
        place_ = cursor_.take_if(']') ? after_events() : one_event();
        break;
      case Place::kEvent:
        place_ = one_event();
        break;
      case Place::kMemberEnd:
        place_ = cursor_.ends('}') ? Place::kEnd : Place::kMember;
        break;
      case Place::kEnd:
        break;
    }
  }

  void begin() {
    if (cursor_.take_if('{')) {
      place_ = Place::kFirstMember;
    } else if (cursor_.take_if('[')) {
      bare_list_ = has_events_ = true;
      place_ = Place::kFirstEvent;
    } else {
      const uint64_t byte = cursor_.byte();
      (void)cursor_.value();
      cursor_.fail(byte, "not a trace: expected an object or a list of events");
    }
  }

  Place member() {
    const std::string_view key = cursor_.key();
    if (key == "traceEvents") {
      if (cursor_.peek() != '[') {
        const uint64_t byte = cursor_.byte();
        (void)cursor_.value();
        cursor_.fail(byte, "\"traceEvents\" is not a list");
      }
      cursor_.take('[', "'['");
      has_events_ = true;
      return Place::kFirstEvent;
    }
    cursor_.not_json().clear();
    const JsonValue value = cursor_.value();
    const bool end = cursor_.ends('}');
    std::string storage;
    const std::string name(cursor_.unescaped(key, storage));
    if (keys_.size() < kMostKeys) {
      keys_.push_back(name);
    }
    if (name == "shardlens") {
      OwnMember own = own_member(value);
      builder_.set_units(own.units);
      for (const Diagnostic& note : own.notes) {
        add_diagnostic(trace_.diagnostics, note.severity, note.message, note.count);
      }
      trace_.metadata.notes = std::move(own.notes);
    } else {
      read_top_level(name, value, cursor_, trace_);
    }
    return end ? Place::kEnd : Place::kMember;
  }

  // A JSON object without events.
  [[noreturn]] void refuse() const {
    const ForeignKind* kind = foreign_json(keys_);
    throw NotATrace(trace_.metadata.source, kind == nullptr
                                                ? "not a trace: it has no list \"traceEvents\""
                                                : words_of(*kind));
  }

  Place one_event() {
    ++entries_;
    builder_.read();
    const bool end = cursor_.ends(']');
    builder_.add();
    return end ? after_events() : Place::kEvent;
  }

  [[nodiscard]] Place after_events() const { return bare_list_ ? Place::kEnd : Place::kMemberEnd; }

  // Adds to the events what is known of the whole file: the base time may come after the events.
  void complete(Trace& trace) const {
    Metadata& m = trace.metadata;
    if (m.base_time != 0 && is_of_epoch(builder_.first_time().value_or(0))) {
      add_diagnostic(
          trace.diagnostics, Severity::kNote,
          "times are already relative to the epoch, so baseTimeNanoseconds is not added");
    } else if (m.base_time != 0) {
      add_base(trace);
    }
    if (!m.rank) {
      m.rank = rank_of_file_name(std::filesystem::path(m.source).filename().string());
      m.rank_is_from_name = m.rank.has_value();
      add_diagnostic(
          trace.diagnostics, Severity::kNote,
          m.rank ? fmt::format("the file states no rank; rank {} is read from its name", *m.rank)
                 : std::string("neither the file nor its name contains a rank"));
    }
  }

  static void add_base(Trace& trace) {
    const Nanoseconds base = trace.metadata.base_time;
    int64_t left_out = 0;
    erase_if(trace.events, [&](Event& event) {
      const bool fits = !__builtin_add_overflow(event.start, base, &event.start) &&
                        event.start >= -kLatestTime && event.start <= kLatestTime - event.duration;
      left_out += fits ? 0 : 1;
      return !fits;
    });
    if (left_out > 0) {
      add_diagnostic(trace.diagnostics, Severity::kWarning,
                     "events left out: with the base time added their time does not fit in 64 bits",
                     left_out);
    }
  }

  void offer(bool whole) {
    if (parts_ == nullptr) {
      return;
    }
    host_only_ = trace_.devices.empty() ? trace_.events.size() : host_only_;
    const std::optional<size_t> first = parts_->wants(trace_, host_only_, whole);
    if (!first) {
      return;
    }
    Trace part = copy_from(*first);
    if (!whole) {
      complete(part);
    }
    parts_->take(std::move(part));
  }

  // The trace without the events before `first`.
  Trace copy_from(size_t first) {
    GrowingArray<Event> events;
    events.swap(trace_.events);
    Trace copy = trace_;
    events.swap(trace_.events);
    copy.events.resize(trace_.events.size() - first);
    std::copy(trace_.events.begin() + first, trace_.events.end(), copy.events.begin());
    return copy;
  }

  Trace trace_;
  TokenWindow window_;
  JsonCursor cursor_;
  EventBuilder builder_;
  PartSink* parts_;
  Place place_ = Place::kBegin;
  bool bare_list_ = false;
  bool has_events_ = false;
  int64_t entries_ = 0;            // of the list of events
  size_t host_only_ = 0;           // events before the first window that names a stream
  std::vector<std::string> keys_;  // of the file's object, the first kMostKeys
};

}  // namespace

Trace read_kineto(const std::filesystem::path& path, const ReadOptions& options) {
  std::string head;
  const std::unique_ptr<ByteSource> text =
      with_head(open_source(path, options.progress), kHeadBytes, head);
  if (const ForeignKind* kind = foreign_kind(path.filename().string(), head)) {
    throw NotATrace(path.string(), words_of(*kind));
  }
  return parse_kineto(*text, path.string(), options);
}

Trace parse_kineto(std::string_view json, const std::string& source, const ReadOptions& options) {
  if (json.empty()) {
    throw InputError(source, "the file is empty");
  }
  const std::unique_ptr<ByteSource> text = source_of(json);
  return parse_kineto(*text, source, options);
}

Trace parse_kineto(ByteSource& text, const std::string& source, const ReadOptions& options) {
  return Reader(text, source, options).run();
}

bool is_of_epoch(Nanoseconds first) {
  return first / 1000 >= kEpochMicroseconds;
}

std::optional<int64_t> rank_of_file_name(std::string_view name) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t at = name.find("rank"); at != std::string_view::npos;
       at = name.find("rank", at + 1)) {
    size_t i = at + 4;
    if (i < name.size() && (name[i] == '-' || name[i] == '_')) {
      ++i;
    }
    const size_t begin = i;
    while (i < name.size() && digit(name[i])) {
      ++i;
    }
    if (i > begin) {
      return scaled_decimal(name.substr(begin, i - begin), 0);
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::trace
