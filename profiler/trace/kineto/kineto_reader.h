#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/json/token_window.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Takes events one by one in place of Trace::events, so that a trace of any size passes through
// little memory.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  virtual ~EventSink() = default;
  // `event`: its time is still relative to the file's base. `args`: the object as written, or "".
  // Both and the rows of side tables that the event names are valid during the call only; names,
  // tracks and units of `trace` stay.
  virtual void event(const Trace& trace, const Event& event, std::string_view args) = 0;
};

struct ReadOptions {
  bool keep_args = false;  // keep each event's args as written (they take most of the memory)
  EventSink* sink = nullptr;
  size_t window_bytes = TokenWindow::kWindowBytes;  // of text at a time; what does not fit grows it
  Progress* progress = nullptr;                     // of what reads files; must outlive the call
};

// Reads a Kineto or Chrome trace: an object or a bare array of events; plain, gzip or zstd.
//
// Units       ts and dur are microseconds, parsed from their decimal text to nanoseconds, never
//             through a double; baseTimeNanoseconds is added. A file whose times are already of the
//             epoch though it names a base (PyTorch's transition files) is left as it is, with a
//             note.
// Memory      the trace itself and a few MiB: the text is read through a window (token_window.h).
// Errors      InputError with file and byte offset (of the text, or of the compressed file where
//             that is damaged) for what is no JSON, is cut off, or is no trace. A single event that
//             cannot be used (no ts, negative duration, a time that does not fit) is left out and
//             counted in Trace::diagnostics.
[[nodiscard]] Trace read_kineto(const std::filesystem::path& path, const ReadOptions& options = {});
[[nodiscard]] Trace parse_kineto(std::string_view json,
                                 const std::string& source,
                                 const ReadOptions& options = {});
// Errors: also those of `text`.
[[nodiscard]] Trace parse_kineto(ByteSource& text,
                                 const std::string& source,
                                 const ReadOptions& options = {});

// Whether a file whose first event is at `first`, as written, has its times of the epoch: then a
// base time that it names is not added.
[[nodiscard]] bool is_of_epoch(Nanoseconds first);

// "…rank12…", "…rank-12…", "…rank_12…" in a file's name.
[[nodiscard]] std::optional<int64_t> rank_of_file_name(std::string_view name);

}  // namespace shardlens::trace
