#include "profiler/trace/spool/spool_trace.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/json/json_reader.h"
#include "core/json/json_values.h"
#include "profiler/trace/model/latest_time.h"
#include "profiler/trace/spool/spool_device_trace.h"

namespace shardlens::trace {
namespace {

constexpr int64_t kFirstCommunicatorTrack =
    1'000'000'000;  // above any thread id of Linux (at most 2^22)

// As in Kineto, the base time is a multiple of a quarter of a year, so that the files of all ranks
// of a run have the same base.
constexpr Nanoseconds kBaseTimeGrain = Nanoseconds{7889238} * 1'000'000'000;

class Converter {
 public:
  explicit Converter(const Spool& spool) : spool_(spool) {}

  Trace convert() {
    describe();
    has_calls_ = std::any_of(
        spool_.records.begin(), spool_.records.end(),
        [](const SpoolRecord& record) { return record.type == SpoolType::kCollectiveCall; });
    for (const SpoolRecord& record : spool_.records) {
      add(record);
    }
    add_device_records(spool_,
                       {.of_thread = [this](uint32_t thread) { return thread_track(thread); },
                        .arguments = [this](const SpoolRecord& call) { return call_args(call); },
                        .name_of_range = [this](const SpoolRange& range) { return name(range); }},
                       trace_);
    if (step_) {
      diagnose(Severity::kWarning,
               fmt::format("step {} has no end: its events are kept, but it gets no ProfilerStep",
                           step_->step));
    }
    if (!spool_.ended) {
      diagnose(Severity::kWarning,
               "the run did not end normally: recovered from a spool without an end marker");
    }
    count(spool_.dropped, "records were not kept: the spool's byte budget or the disk was full");
    count(spool_.device_dropped,
          "records of the device were lost: its recorder's buffers were full");
    for (const std::string& note : spool_.notes) {
      diagnose(Severity::kWarning, note);
    }
    count(spool_.damaged, "records of the spool are damaged and left out");
    if (spool_.truncated != 0) {
      diagnose(Severity::kNote,
               fmt::format("the spool ends in an incomplete record of {} bytes, left out",
                           spool_.truncated));
    }
    leave_out_too_long();
    trace_.metadata.notes = trace_.diagnostics;
    std::stable_sort(trace_.events.begin(), trace_.events.end(),
                     [](const Event& a, const Event& b) {
                       return a.start != b.start ? a.start < b.start : a.duration > b.duration;
                     });
    return std::move(trace_);
  }

 private:
  void describe() {
    Metadata& metadata = trace_.metadata;
    metadata.source = spool_.source;
    metadata.rank = spool_.header.rank;
    metadata.world_size = spool_.header.world_size;
    metadata.base_time = spool_.header.created / kBaseTimeGrain * kBaseTimeGrain;
    trace_.units = spool_.units;
    trace_.groups = spool_.groups;
    read_metadata();
    Process& process = trace_.process(spool_.header.process);
    process.name = fmt::format("rank {}", spool_.header.rank);
    process.labels = "CPU";
    process.sort_index = spool_.header.rank;
    const uint32_t main = thread_track(static_cast<uint32_t>(spool_.header.process));
    trace_.tracks[main].name = trace_.strings.intern("main");
    trace_.tracks[main].sort_index = 0;
  }

  // Durations may add up to kLatestTime. Every single one fits, since times are within it.
  void leave_out_too_long() {
    Nanoseconds sum = 0;
    const size_t gone = erase_if(trace_.events, [&sum](const Event& event) {
      const bool fits = event.duration <= kLatestTime - sum;
      sum += fits ? event.duration : 0;
      return !fits;
    });
    count(static_cast<int64_t>(gone), "events with impossible durations, left out");
  }

  // The metadata is written by Shardlens, but a fault may have cut the file: what cannot be read is
  // left out.
  void read_metadata() {
    const nlohmann::json json = plan::try_parse_json(spool_.metadata).value_or(nullptr);
    if (!json.is_object()) {
      diagnose(Severity::kWarning, "the spool does not contain its backend and process groups");
      return;
    }
    try {
      const plan::JsonNode metadata(json, spool_.source);
      trace_.metadata.backend = metadata.require("backend").string();
      for (const plan::JsonNode& entry : metadata.require("groups").items("groups")) {
        ProcessGroup group;
        group.name = entry.require("name").string();
        group.description = entry.require("description").string();
        group.backend_config = trace_.metadata.backend;
        for (const plan::JsonNode& rank : entry.require("ranks").items("ranks")) {
          group.ranks.push_back(rank.integer());
        }
        group.size = static_cast<int64_t>(group.ranks.size());
        trace_.metadata.groups.push_back(std::move(group));
      }
    } catch (const InputError&) {
      diagnose(Severity::kWarning,
               "the spool's list of process groups does not have the expected form");
    }
  }

  void add(const SpoolRecord& record) {
    switch (record.type) {
      case SpoolType::kStepBegin:
        step_ = record.step;
        break;
      case SpoolType::kStepEnd:
        add_step(record.step);
        break;
      case SpoolType::kHook:
        add_hook(record.hook);
        break;
      case SpoolType::kAction:
        add_action(record.action);
        break;
      case SpoolType::kRange:
        add_range(record.range);
        break;
      case SpoolType::kCollective:
        add_collective(record);
        break;
      case SpoolType::kOperator:
        add_operator(record);
        break;
      default:
        break;
    }
  }

  void add_step(const SpoolStep& end) {
    if (!step_ || step_->step != end.step || end.time < step_->time) {
      diagnose(Severity::kWarning,
               fmt::format("step {} has no start: it gets no ProfilerStep", end.step));
    } else {
      trace_.add_complete(Category::kUserAnnotation, fmt::format("ProfilerStep#{}", end.step),
                          thread_track(static_cast<uint32_t>(spool_.header.process)), step_->time,
                          end.time);
    }
    step_.reset();
  }

  void add_hook(const SpoolHook& hook) {
    HookArgs args;
    args.seq = hook.seq;
    args.hook = {.hook = static_cast<Hook>(hook.hook),
                 .unit = hook.unit,
                 .invocation = hook.invocation,
                 .grad_mode = hook.grad_mode != 0,
                 .recompute = hook.recompute != 0,
                 .grads = static_cast<Grads>(hook.grads)};
    trace_.add_hook(thread_track(hook.thread), hook.time, args);
  }

  void add_action(const SpoolAction& action) {
    ActionArgs args;
    args.seq = action.seq;
    args.hook_seq = action.hook_seq;
    args.action.op = static_cast<schedule::Op>(action.op);
    args.action.stream = static_cast<schedule::Stream>(action.stream);
    args.action.group = action.group;
    args.action.cause = static_cast<schedule::Cause>(action.cause);
    args.action.unit = action.unit;
    args.action.buffer = {.kind = static_cast<schedule::BufferKind>(action.buffer_kind),
                          .unit = action.buffer_unit,
                          .generation = action.generation};
    args.action.event = action.event;
    trace_.add_action(thread_track(action.thread), action.time, args);
  }

  void add_range(const SpoolRange& range) {
    trace_.add_complete(Category::kUserAnnotation, name(range), thread_track(range.thread),
                        range.start, range.end);
  }

  [[nodiscard]] std::string name(const SpoolRange& range) const {
    const auto kind = static_cast<Range>(range.range);
    return fmt::format("{}{}", name_of(kind), names_unit(kind) ? unit_suffix(range.unit) : "");
  }

  void add_collective(const SpoolRecord& record) {
    const SpoolCollective& c = record.collective;
    const std::string& group = spool_.texts.at(c.group);
    CollectiveArgs args = collective_args(record);
    args.issued = c.issued;
    std::string name =
        fmt::format("{}:{}", trace_.metadata.backend.empty() ? "c10d" : trace_.metadata.backend,
                    name_of(static_cast<CollectiveKind>(record.a)));
    name += unit_suffix(c.unit);
    trace_.add_collective(name, communicator_track(c.group, group), c.start, c.end, args);
  }

  CollectiveArgs call_args(const SpoolRecord& record) {
    CollectiveArgs args = collective_args(record);
    args.issued = record.collective.start;
    return args;
  }

  // The arguments except the time of issue.
  CollectiveArgs collective_args(const SpoolRecord& record) {
    const SpoolCollective& c = record.collective;
    const std::string& group = spool_.texts.at(c.group);
    CollectiveArgs args;
    args.collective = trace_.strings.intern(kineto_name(static_cast<CollectiveKind>(record.a)));
    args.dtype = trace_.strings.intern(kineto_name(static_cast<DType>(record.b)));
    args.group = trace_.strings.intern(group);
    for (const ProcessGroup& known : trace_.metadata.groups) {
      if (known.name == group) {
        args.group_description = trace_.strings.intern(known.description);
        args.group_ranks = trace_.strings.intern(fmt::format("[{}]", fmt::join(known.ranks, ", ")));
      }
    }
    args.unit = c.unit;
    args.group_size = c.group_size;
    args.action = c.action;
    args.in_nelems = c.in_nelems;
    args.out_nelems = c.out_nelems;
    args.sequence = c.sequence;
    args.emulated = record.c != 0;
    return args;
  }

  void add_operator(const SpoolRecord& record) {
    const SpoolOperator& op = record.op;
    // c10d's own event for a call; the kCollectiveCall record has the call with all its arguments.
    if (has_calls_ && spool_.texts.at(op.name) == "record_param_comms") {
      return;
    }
    const uint32_t event = trace_.add_complete(Category::kCpuOp, spool_.texts.at(op.name),
                                               thread_track(op.thread), op.start, op.end);
    if (record.a == 0) {
      return;
    }
    std::string dims;
    size_t next = 0;
    for (size_t input = 0; input < record.a; ++input) {
      dims += input == 0 ? "[" : ", [";
      dims += fmt::format("{}", fmt::join(op.dims + next, op.dims + next + op.ranks[input], ", ")) +
              "]";
      next += op.ranks[input];
    }
    trace_.set_args(event, fmt::format("{{\"Input Dims\": [{}]}}", dims));
  }

  // " (fqn)", or "" for the root, as in PyTorch.
  [[nodiscard]] std::string unit_suffix(uint32_t unit) const {
    return unit == kNoUnit || spool_.units[unit].empty() ? ""
                                                         : fmt::format(" ({})", spool_.units[unit]);
  }

  uint32_t thread_track(uint32_t thread) {
    const auto [it, added] = threads_.try_emplace(thread, 0);
    if (added) {
      it->second = trace_.track(spool_.header.process, thread);
      if (trace_.tracks[it->second].name == kEmptyString) {
        trace_.tracks[it->second].name = trace_.strings.intern(fmt::format("thread {}", thread));
      }
    }
    return it->second;
  }

  uint32_t communicator_track(uint32_t text, const std::string& group) {
    const auto [it, added] = communicators_.try_emplace(text, 0);
    if (added) {
      const auto index = static_cast<int64_t>(communicators_.size());
      it->second = trace_.track(spool_.header.process, kFirstCommunicatorTrack + index);
      trace_.tracks[it->second].name = trace_.strings.intern("communicator " + group);
      trace_.tracks[it->second].sort_index = index;
    }
    return it->second;
  }

  void diagnose(Severity severity, std::string message) {
    add_diagnostic(trace_.diagnostics, severity, std::move(message));
  }
  void count(int64_t n, const char* message) {
    if (n != 0) {
      add_diagnostic(trace_.diagnostics, Severity::kWarning, message, n);
    }
  }

  const Spool& spool_;
  Trace trace_;
  std::map<uint32_t, uint32_t> threads_, communicators_;  // to tracks
  bool has_calls_ = false;
  std::optional<SpoolStep> step_;  // step that has started but not ended
};

}  // namespace

Trace spool_to_trace(const Spool& spool) {
  return Converter(spool).convert();
}

}  // namespace shardlens::trace
