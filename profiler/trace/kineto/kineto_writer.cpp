#include "profiler/trace/kineto/kineto_writer.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/json/json_text.h"

namespace shardlens::trace {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 18;

const std::filesystem::path& checked_name(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.ends_with(".json") && !name.ends_with(".json.gz")) {
    throw UsageError("'" + path.string() +
                     "': the name of a trace file must end in .json or .json.gz");
  }
  return path;
}

// One JSON object or array on one line; separates its members by commas.
class Members {
 public:
  Members(std::string& out, char open, char close) : out_(out), close_(close) { out_ += open; }
  void end() { out_ += close_; }

  std::string& key(std::string_view name) {
    next();
    append_quoted(out_, name);
    out_ += ": ";
    return out_;
  }
  void text(std::string_view name, std::string_view value) { append_quoted(key(name), value); }
  void integer(std::string_view name, int64_t value) { append_integer(key(name), value); }
  void boolean(std::string_view name, bool value) { key(name) += value ? "true" : "false"; }
  void raw(std::string_view name, std::string_view json) { key(name) += json; }
  void microseconds(std::string_view name, Nanoseconds value) {
    append_microseconds(key(name), value);
  }
  std::string& next() {
    if (!first_) {
      out_ += ", ";
    }
    first_ = false;
    return out_;
  }

 private:
  std::string& out_;
  char close_;
  bool first_ = true;
};

}  // namespace

class KinetoWriter::Body {
 public:
  Body(const Trace& head, TextOutput out) : head_(head), output_(std::move(out)) {}

  void begin() {
    const Metadata& m = head_.metadata;
    out_ += "{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": ";
    out_ += m.device_properties.empty() ? "[]" : m.device_properties;
    top("distributedInfo");
    distributed_info();
    for (const auto& [key, json] : m.other) {
      top(key);
      out_ += json;
    }
    if (!head_.units.empty() || !m.notes.empty()) {
      top("shardlens");
      own_member();
    }
    out_ += ",\n  \"displayTimeUnit\": \"ms\"";
    top("baseTimeNanoseconds");
    append_integer(out_, m.base_time);
    top("traceEvents");
    names();
  }

  void event(const Trace& trace, const Event& event, std::string_view args) {
    one_event(trace, event, args);
    if (out_.size() >= kFlushBytes) {
      flush();
    }
  }

  void finish() {
    out_ += "\n  ]";
    top("traceName");
    append_quoted(out_, head_.metadata.trace_name);
    out_ += "\n}\n";
    flush();
  }

 private:
  void flush() {
    output_(out_);
    out_.clear();
  }

  void top(std::string_view key) {
    out_ += ",\n  ";
    append_quoted(out_, key);
    out_ += ": ";
  }

  void distributed_info() {
    const Metadata& m = head_.metadata;
    Members info(out_, '{', '}');
    if (!m.backend.empty()) {
      info.text("backend", m.backend);
    }
    if (m.rank) {
      info.integer("rank", *m.rank);
    }
    if (m.world_size) {
      info.integer("world_size", *m.world_size);
    }
    if (!m.groups.empty()) {
      info.integer("pg_count", static_cast<int64_t>(m.groups.size()));
      info.key("pg_config");
      Members list(out_, '[', ']');
      for (const ProcessGroup& group : m.groups) {
        list.next();
        process_group(group);
      }
      list.end();
    }
    for (const auto& [key, json] : m.other_distributed) {
      info.raw(key, json);
    }
    info.end();
  }

  void process_group(const ProcessGroup& group) {
    Members members(out_, '{', '}');
    members.text("pg_name", group.name);
    members.text("pg_desc", group.description);
    members.text("backend_config", group.backend_config);
    members.integer("pg_size", group.size);
    members.key("ranks");
    Members ranks(out_, '[', ']');
    for (const int64_t rank : group.ranks) {
      append_integer(ranks.next(), rank);
    }
    ranks.end();
    members.end();
  }

  void own_member() {
    Members ours(out_, '{', '}');
    ours.integer("version", 1);
    ours.key("units");
    Members list(out_, '[', ']');
    for (const std::string& fqn : head_.units) {
      append_quoted(list.next(), fqn);
    }
    list.end();
    if (!head_.metadata.notes.empty()) {
      ours.key("notes");
      notes();
    }
    ours.end();
  }

  void notes() {
    Members list(out_, '[', ']');
    for (const Diagnostic& note : head_.metadata.notes) {
      list.next();
      Members members(out_, '{', '}');
      members.text("severity", name_of(note.severity));
      members.text("message", note.message);
      members.integer("count", note.count);
      members.end();
    }
    list.end();
  }

  void line() {
    out_ += first_line_ ? "\n    " : ",\n    ";
    first_line_ = false;
  }

  void names() {
    out_ += '[';
    for (const Process& p : head_.processes) {
      Track ids;
      ids.pid = p.pid;
      ids.pid_text = p.pid_text;
      ids.pid_is_text = p.pid_is_text;
      if (!p.name.empty()) {
        name_event("process_name", ids, "name", p.name);
      }
      if (!p.labels.empty()) {
        name_event("process_labels", ids, "labels", p.labels);
      }
      if (p.sort_index) {
        sort_event("process_sort_index", ids, *p.sort_index);
      }
    }
    for (const Track& track : head_.tracks) {
      if (track.name != kEmptyString) {
        name_event("thread_name", track, "name", head_.strings.view(track.name));
      }
      if (track.sort_index) {
        sort_event("thread_sort_index", track, *track.sort_index);
      }
    }
  }

  void ids(Members& members, const StringTable& strings, const Track& track) {
    track.pid_is_text ? members.text("pid", strings.view(track.pid_text))
                      : members.integer("pid", track.pid);
    track.tid_is_text ? members.text("tid", strings.view(track.tid_text))
                      : members.integer("tid", track.tid);
  }

  void name_event(std::string_view what,
                  const Track& track,
                  std::string_view key,
                  std::string_view value) {
    line();
    Members members(out_, '{', '}');
    members.text("ph", "M");
    members.text("name", what);
    members.integer("ts", 0);
    ids(members, head_.strings, track);
    members.key("args");
    Members args(out_, '{', '}');
    args.text(key, value);
    args.end();
    members.end();
  }

  void sort_event(std::string_view what, const Track& track, int64_t value) {
    line();
    Members members(out_, '{', '}');
    members.text("ph", "M");
    members.text("name", what);
    members.integer("ts", 0);
    ids(members, head_.strings, track);
    members.key("args");
    Members args(out_, '{', '}');
    args.integer("sort_index", value);
    args.end();
    members.end();
  }

  void one_event(const Trace& trace, const Event& event, std::string_view given) {
    line();
    Members members(out_, '{', '}');
    const std::string_view category = trace.category(event);
    constexpr std::string_view kPhases[] = {"X", "i", "s", "f", "C"};
    members.text("ph", kPhases[static_cast<size_t>(event.phase)]);
    if (!category.empty()) {
      members.text("cat", category);
    }
    members.text("name", trace.name(event));
    ids(members, trace.strings, trace.tracks.at(event.track));
    Nanoseconds relative = 0;
    SHARDLENS_CHECK(!__builtin_sub_overflow(event.start, head_.metadata.base_time, &relative),
                    "the difference between a time and the trace's base time overflows");
    members.microseconds("ts", relative);
    switch (event.phase) {
      case EventPhase::kComplete:
        members.microseconds("dur", event.duration);
        break;
      case EventPhase::kInstant:
        members.text("s", category.empty() ? "g" : "t");
        break;
      case EventPhase::kFlowStart:
        members.integer("id", event.correlation);
        break;
      case EventPhase::kFlowEnd:
        members.integer("id", event.correlation);
        members.text("bp", "e");
        break;
      case EventPhase::kCounter:
        break;
    }
    if (given.empty()) {
      event_args(members, trace, event);
    } else {
      members.raw("args", given);
    }
    members.end();
  }

  void event_args(Members& members, const Trace& trace, const Event& event) {
    const bool flow = event.phase == EventPhase::kFlowStart || event.phase == EventPhase::kFlowEnd;
    if (const std::string_view json = trace.args_json(event); !json.empty()) {
      members.raw("args", json);
      return;
    }
    if (event.detail_kind == ArgsKind::kNone && event.external_id == 0 &&
        (event.correlation == 0 || flow)) {
      return;
    }
    members.key("args");
    Members args(out_, '{', '}');
    if (const CollectiveArgs* collective = trace.collective(event)) {
      collective_args(args, trace, *collective);
    } else if (const ActionArgs* action = trace.action(event)) {
      action_args(args, trace, *action);
    } else if (const HookArgs* hook = trace.hook(event)) {
      hook_args(args, trace, *hook);
    } else if (const SyncArgs* sync = trace.sync(event)) {
      sync_args(args, *sync);
    } else if (const MemoryArgs* memory = trace.memory(event)) {
      memory_args(args, *memory);
    }
    if (const DeviceArgs* device = trace.device(event)) {
      device_args(args, trace, *device);
      if (device->launch != kNoIndex) {
        launch_args(args, trace.launches.at(device->launch));
      }
      const bool moves =
          event.category == Category::kGpuMemcpy || event.category == Category::kGpuMemset;
      if (moves && device->bytes >= 0 && event.duration > 0) {
        args.key("memory bandwidth (GB/s)") += fmt::format(
            "{}", static_cast<double>(device->bytes) / static_cast<double>(event.duration));
      }
    }
    if (event.external_id != 0) {
      args.integer("External id", event.external_id);
    }
    if (event.correlation != 0 && !flow) {
      args.integer("correlation", event.correlation);
    }
    args.end();
  }

  static void unit(Members& args, const Trace& trace, std::string_view key, UnitId id) {
    if (id != kNoUnit) {
      args.text(key, trace.units.at(id));
    }
  }

  static void collective_args(Members& args, const Trace& trace, const CollectiveArgs& c) {
    const auto text = [&](std::string_view key, StringId id) {
      if (id != kEmptyString) {
        args.text(key, trace.strings.view(id));
      }
    };
    text("Collective name", c.collective);
    number(args, "In msg nelems", c.in_nelems, -1);
    number(args, "Out msg nelems", c.out_nelems, -1);
    number(args, "Group size", c.group_size, 0);
    text("dtype", c.dtype);
    text("Process Group Name", c.group);
    text("Process Group Description", c.group_description);
    text("Process Group Ranks", c.group_ranks);
    unit(args, trace, "unit", c.unit);
    number(args, "seq", c.sequence, -1);
    number(args, "Comms Id", c.comms_id, 0);
    number(args, "action", c.action, 0);
    number(args, "issued_ns", c.issued, 0);
    if (c.emulated) {
      args.boolean("emulated", true);
    }
  }

  static void number(Members& args, std::string_view key, int64_t value, int64_t absent) {
    if (value != absent) {
      args.integer(key, value);
    }
  }

  static void device_args(Members& args, const Trace& trace, const DeviceArgs& d) {
    number(args, "device", d.device, -1);
    number(args, "context", d.context, -1);
    number(args, "stream", d.stream, -1);
    number(args, "bytes", d.bytes, -1);
    number(args, "graph id", d.graph, -1);
    number(args, "graph node id", d.graph_node, -1);
    number(args, "event id", d.event, 0);
    if (d.module != kEmptyString) {
      args.text("module_fqn", trace.strings.view(d.module));
    }
    if (d.backward) {
      args.text("autograd_phase", "backward");
    }
  }

  // As in Kineto: blocks and warps per multiprocessor assume an even distribution.
  static void launch_args(Members& args, const LaunchArgs& l) {
    const auto three = [&](std::string_view key, const auto& v) {
      args.raw(key, fmt::format("[{}, {}, {}]", v[0], v[1], v[2]));
    };
    args.integer("queued", 0);
    args.integer("registers per thread", l.registers);
    args.integer("shared memory", l.shared_memory);
    if (l.multiprocessors > 0) {
      const double blocks = static_cast<double>(l.grid[0]) * l.grid[1] * l.grid[2];
      const double warps = blocks * l.block[0] * l.block[1] * l.block[2] / 32;
      args.raw("blocks per SM", fmt::format("{:.6g}", blocks / l.multiprocessors));
      args.raw("warps per SM", fmt::format("{:.6g}", warps / l.multiprocessors));
    }
    three("grid", l.grid);
    three("block", l.block);
    number(args, "est. achieved occupancy %", l.occupancy, -1);
  }

  static void sync_args(Members& args, const SyncArgs& s) {
    args.text("cuda_sync_kind", name_of(s.kind));
    number(args, "wait_on_stream", s.wait_on_stream, -1);
    number(args, "wait_on_cuda_event_record_corr_id", s.wait_on_record, 0);
    number(args, "wait_on_cuda_event_id", s.wait_on_event, -1);
    args.integer("stream", s.stream);
    number(args, "device", s.device, -1);
  }

  static void memory_args(Members& args, const MemoryArgs& m) {
    args.integer("Addr", m.address);
    args.integer("Bytes", m.bytes);
    number(args, "Total Allocated", m.total_allocated, -1);
    args.integer("Total Reserved", m.total_reserved);
    args.integer("Device Type", m.device_type);
    args.integer("Device Id", m.device);
  }

  static void action_args(Members& args, const Trace& trace, const ActionArgs& a) {
    const schedule::Action& action = a.action;
    args.integer("seq", a.seq);
    if (a.hook_seq != 0) {
      args.integer("hook_seq", a.hook_seq);
    }
    args.text("op", schedule::name_of(action.op));
    unit(args, trace, "unit", action.unit);
    args.text("stream", schedule::name_of(action.stream));
    if (action.buffer.kind != schedule::BufferKind::kNone) {
      args.text("buffer", schedule::name_of(action.buffer.kind));
      unit(args, trace, "buffer_unit", action.buffer.unit);
      args.integer("generation", action.buffer.generation);
    }
    if (action.event != schedule::kNoEvent) {
      args.integer("event", action.event);
    }
    args.text("cause", schedule::name_of(action.cause));
    args.text("axis", trace.group_name(action.group));
  }

  static void hook_args(Members& args, const Trace& trace, const HookArgs& h) {
    args.integer("seq", h.seq);
    args.text("hook", shardlens::name_of(h.hook.hook));
    unit(args, trace, "unit", h.hook.unit);
    args.integer("invocation", h.hook.invocation);
    args.boolean("grad_mode", h.hook.grad_mode);
    args.boolean("recompute", h.hook.recompute);
    args.text("grads", shardlens::name_of(h.hook.grads));
  }

  const Trace& head_;
  TextOutput output_;
  std::string out_;
  bool first_line_ = true;
};

KinetoWriter::KinetoWriter(const Trace& head, TextOutput out)
    : body_(std::make_unique<Body>(head, std::move(out))) {
  body_->begin();
}

KinetoWriter::~KinetoWriter() = default;

void KinetoWriter::event(const Trace& trace, const Event& event, std::string_view args) {
  body_->event(trace, event, args);
}

void KinetoWriter::finish() {
  body_->finish();
}

TraceFile::TraceFile(const std::filesystem::path& path) : file_(checked_name(path)) {
  if (path.extension() == ".gz") {
    encoder_ =
        std::make_unique<GzipEncoder>([this](std::string_view bytes) { file_.write(bytes); });
  }
}

TextOutput TraceFile::output() {
  return [this](std::string_view text) {
    if (encoder_ != nullptr) {
      encoder_->write(text);
    } else {
      file_.write(text);
    }
  };
}

void TraceFile::commit() {
  if (encoder_ != nullptr) {
    encoder_->finish();
  }
  file_.commit();
}

namespace {

void write_all(const Trace& trace, TextOutput out) {
  KinetoWriter writer(trace, std::move(out));
  for (const Event& event : trace.events) {
    writer.event(trace, event);
  }
  writer.finish();
}

}  // namespace

std::string to_kineto_json(const Trace& trace) {
  std::string json;
  write_all(trace, [&json](std::string_view text) { json += text; });
  return json;
}

void write_kineto(const Trace& trace, const std::filesystem::path& path) {
  TraceFile file(path);
  write_all(trace, file.output());
  file.commit();
}

}  // namespace shardlens::trace
