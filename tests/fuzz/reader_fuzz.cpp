// Fuzzes the reader: any bytes give a trace or an InputError, the same with windows of any size,
// and a trace can be written and read again.
//
// The first byte of the input chooses: bit 0 keeps arguments; bits 1 and 2: 0 the rest is JSON, 1
// it is a file of any kind (compressed or not), 2 and 3 it is JSON that gzip compresses first, in
// one member or two.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/structured_mutator.h"

namespace {

using namespace shardlens;         // NOLINT: a fuzz target is one file
using namespace shardlens::trace;  // NOLINT
using fuzz::require;

constexpr size_t kSmallWindow = 96,
                 kLargeWindow = 8192;  // about one per line; one per input

struct Outcome {
  std::optional<Trace> trace;
  std::string error;
};

Outcome read(ByteSource& source, const ReadOptions& options) {
  Outcome outcome;
  try {
    outcome.trace = parse_kineto(source, "f.json", options);
  } catch (const InputError& error) {
    outcome.error = error.what();
    require(!outcome.error.empty() && outcome.error.starts_with("f.json"),
            "a message names its file");
  }
  return outcome;
}

// A whole window is searched for bytes that are not UTF-8 before its tokens are read, so with
// several faults the one that is named may differ.
void require_same(const Outcome& a, const Outcome& b) {
  require(a.trace.has_value() == b.trace.has_value(), "windows agree that it is a trace");
  if (!a.trace) {
    return;
  }
  require(a.trace->events.size() == b.trace->events.size(), "windows agree on the events");
  for (size_t i = 0; i < a.trace->events.size(); ++i) {
    const Event &x = a.trace->events[i], &y = b.trace->events[i];
    require(x.start == y.start && x.duration == y.duration && x.track == y.track &&
                x.name == y.name && x.correlation == y.correlation && x.detail == y.detail,
            "windows agree on each event");
    require(a.trace->args_json(x) == b.trace->args_json(y), "windows agree on arguments");
  }
  require(a.trace->diagnostics == b.trace->diagnostics, "windows agree on the diagnostics");
}

void check_json(std::string_view json, bool keep_args) {
  const auto read_in = [&](size_t window) {
    const auto source = source_of(json);
    return read(*source, {.keep_args = keep_args, .window_bytes = window});
  };
  const Outcome whole = read_in(kLargeWindow);
  require_same(whole, read_in(kSmallWindow));
  if (whole.trace) {
    const std::string again = to_kineto_json(*whole.trace);
    const Trace second =
        parse_kineto(again, "again.json", {.keep_args = keep_args, .window_bytes = kLargeWindow});
    require(second.events.size() == whole.trace->events.size(), "what is written reads back");
  }
}

void check_file(std::string_view bytes, bool keep_args) {
  try {
    const auto source = open_source(bytes, "f.json");
    (void)read(*source, {.keep_args = keep_args, .window_bytes = kLargeWindow});
  } catch (const InputError&) {
  }
}

}  // namespace

fuzz::Form fuzz::form_of(std::string_view input) {
  const bool is_file = !input.empty() && (input[0] >> 1 & 3) == 1;
  return is_file ? Form::kBytes : Form::kJsonAfterByte;
}

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const bool keep_args = (data[0] & 1) != 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] >> 1 & 3) {
    case 0:
      check_json(rest, keep_args);
      break;
    case 1:
      check_file(rest, keep_args);
      break;
    case 2:
      check_file(gzip(rest), keep_args);
      break;
    default:
      check_file(gzip(rest.substr(0, rest.size() / 2)) + gzip(rest.substr(rest.size() / 2)),
                 keep_args);
      break;
  }
  return 0;
}
