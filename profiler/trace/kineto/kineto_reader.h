#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/json/token_window.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Receives events one by one instead of collecting them in Trace::events, so that a trace of any
// size can be processed with little memory.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  virtual ~EventSink() = default;
  // `event`: its time is still relative to the file's base time. `args`: the object as written, or
  // "". Both, and the rows of side tables that the event refers to, are valid only during the call;
  // names, tracks and units of `trace` stay valid.
  virtual void event(const Trace& trace, const Event& event, std::string_view args) = 0;
};

struct ReadOptions {       // how a trace file is read
  bool keep_args = false;  // keep each event's args as written (they take most of the memory)
  // Keep the arrows from launches to kernels and from forward to backward. They are half of the
  // events of many traces, and no figure needs more than one: it shows that the file is a trace.
  bool keep_flows = true;
  EventSink* sink = nullptr;
  size_t window_bytes = TokenWindow::kWindowBytes;  // text read at a time; grows for larger pieces
  Progress* progress = nullptr;  // used when reading files; must outlive the call
};

// Reads a Kineto or Chrome trace: an object or a bare array of events; plain, gzip or zstd.
//
// Units       ts and dur are microseconds, parsed from their decimal text to nanoseconds without a
//             double; baseTimeNanoseconds is added. If a file has baseTimeNanoseconds but its times
//             are already relative to the epoch (written by some transitional versions of PyTorch),
//             the base is not added and a note is recorded.
// Memory      the trace itself and a few MiB: the text is read through a sliding window
//             (token_window.h).
// Errors      InputError with file and byte offset (in the text, or in the compressed file if that
//             is damaged) if the file is not JSON or is cut off; NotATrace (foreign_files.h) if it
//             is of another kind. A single event
//             that cannot be used (no ts, negative duration, a time that does not fit) is left out
//             and counted in Trace::diagnostics.
[[nodiscard]] Trace read_kineto(const std::filesystem::path& path, const ReadOptions& options = {});
[[nodiscard]] Trace parse_kineto(std::string_view json,
                                 const std::string& source,
                                 const ReadOptions& options = {});
// Errors: as above, and those of `text`.
[[nodiscard]] Trace parse_kineto(ByteSource& text,
                                 const std::string& source,
                                 const ReadOptions& options = {});

// Whether the times of a file are relative to the epoch, judged by `first`, the time of its first
// event as written. Then its base time is not added.
[[nodiscard]] bool is_of_epoch(Nanoseconds first);

// The rank in a file's name: "…rank12…", "…rank-12…", "…rank_12…".
[[nodiscard]] std::optional<int64_t> rank_of_file_name(std::string_view name);

}  // namespace shardlens::trace
