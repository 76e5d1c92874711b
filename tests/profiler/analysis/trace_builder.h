#pragma once

#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::test {

// Builds a trace event by event; times in nanoseconds as the test writes them.
class TraceBuilder {
 public:
  explicit TraceBuilder(int64_t rank = 0) {
    trace.metadata.rank = rank;
    trace.metadata.world_size = 2;
    trace.metadata.source = "built";
    main = trace.track(1, 1);
  }

  void step(int64_t k, Nanoseconds start, Nanoseconds end) {
    range("ProfilerStep#" + std::to_string(k), start, end);
  }
  void range(std::string_view name, Nanoseconds start, Nanoseconds end) {
    trace.add_complete(trace::Category::kUserAnnotation, name, main, start, end);
  }
  void op(std::string_view name, Nanoseconds start, Nanoseconds end) {
    trace.add_complete(trace::Category::kCpuOp, name, main, start, end);
  }
  // An operator that autograd numbers, because it will differentiate it.
  void numbered(std::string_view name, Nanoseconds start, Nanoseconds end, int number) {
    const uint32_t event = trace.add_complete(trace::Category::kCpuOp, name, main, start, end);
    trace.set_args(event, R"({"Sequence number": )" + std::to_string(number) + "}");
  }
  // FSDP2's work for a unit, as "FSDP::all_gather (layers.0)"; "": the root.
  void fsdp2(std::string_view what, std::string_view unit, Nanoseconds start, Nanoseconds end) {
    range("FSDP::" + std::string(what) + (unit.empty() ? "" : " (" + std::string(unit) + ")"),
          start, end);
  }
  // FSDP1's, which names no unit: "FullyShardedDataParallel._pre_forward".
  void fsdp1(std::string_view what, Nanoseconds start, Nanoseconds end) {
    range("FullyShardedDataParallel." + std::string(what), start, end);
  }
  // What ran on Gloo's thread: "gloo:all_gather".
  void gloo(std::string_view what, Nanoseconds start, Nanoseconds end) {
    trace.add_complete(trace::Category::kUserAnnotation, "gloo:" + std::string(what),
                       trace.track(1, 99), start, end);
  }

  // A kernel, memcpy or memset that the host launched at `launched` (negative: its launch is not in
  // the trace).
  void device(trace::Category category,
              std::string_view name,
              int64_t stream,
              Nanoseconds launched,
              Nanoseconds start,
              Nanoseconds end) {
    const uint32_t event = trace.add_complete(category, name, trace.track(0, stream), start, end);
    if (launched >= 0) {
      const uint32_t launch = trace.add_complete(trace::Category::kCudaRuntime, "cudaLaunchKernel",
                                                 main, launched, launched + 1);
      trace.events[launch].correlation = trace.events[event].correlation = ++correlation_;
    }
  }

  uint32_t unit(std::string_view fqn) {
    for (uint32_t i = 0; i < trace.units.size(); ++i) {
      if (trace.units[i] == fqn) {
        return i;
      }
    }
    trace.units.emplace_back(fqn);
    return static_cast<uint32_t>(trace.units.size() - 1);
  }

  uint32_t hook(Hook kind, std::string_view fqn, Nanoseconds time, bool recompute = false) {
    trace::HookArgs args;
    args.seq = ++hooks_;
    args.hook.hook = kind;
    args.hook.unit = unit(fqn);
    args.hook.recompute = recompute;
    trace.add_hook(main, time, args);
    return args.seq;
  }

  uint32_t action(schedule::Op op,
                  std::string_view fqn,
                  Nanoseconds time,
                  schedule::Stream stream,
                  schedule::Cause cause = schedule::Cause::kOwn,
                  schedule::EventId event = schedule::kNoEvent) {
    trace::ActionArgs args;
    args.seq = ++actions_;
    args.hook_seq = hooks_;
    args.action.op = op;
    args.action.stream = stream;
    args.action.cause = cause;
    args.action.unit = unit(fqn);
    args.action.event = event;
    trace.add_action(main, time, args);
    return args.seq;
  }

  // A collective as our recorder writes it: issued at `issued` by an action, which an event
  // records, run on a communicator, waited for at `waited` (negative: never).
  struct Ran {
    CollectiveKind kind = CollectiveKind::kAllGather;
    std::string_view fqn = {};
    Nanoseconds issued = 0, start = 0, end = 0, waited = -1;
    schedule::Cause cause = schedule::Cause::kOwn;
    std::string_view group = "shard";
  };
  void collective(const Ran& ran) {
    const bool gather = ran.kind == CollectiveKind::kAllGather;
    const auto stream = gather ? schedule::Stream::kAllGather : schedule::Stream::kReduceScatter;
    const auto op = gather ? schedule::Op::kAllGather : schedule::Op::kReduceScatter;
    const uint32_t seq = action(op, ran.fqn, ran.issued, stream, ran.cause);
    const schedule::EventId event = ++events_;
    action(schedule::Op::kRecord, ran.fqn, ran.issued, stream, ran.cause, event);
    if (ran.waited >= 0) {
      waits_.push_back({event, ran.waited, std::string(ran.fqn)});
    }
    communication(ran, seq);
  }
  // Waits are actions, too. Their seq follows those of all collectives; the analysis needs only
  // that.
  trace::Trace finish() {
    for (const auto& wait : waits_) {
      action(schedule::Op::kStreamWait, wait.fqn, wait.time, schedule::Stream::kCompute,
             schedule::Cause::kOwn, wait.event);
    }
    waits_.clear();
    return std::move(trace);
  }

  void communication(const Ran& ran, uint32_t action_seq) {
    trace::CollectiveArgs args;
    args.collective = trace.strings.intern(kineto_name(ran.kind));
    args.dtype = trace.strings.intern("Float");
    args.group = trace.strings.intern(ran.group);
    args.unit = action_seq == 0 ? kNoUnit : unit(ran.fqn);
    args.action = action_seq;
    args.in_nelems = ran.kind == CollectiveKind::kAllGather ? 50 : 100;
    args.out_nelems = ran.kind == CollectiveKind::kAllGather ? 100 : 50;
    args.sequence = sequence_++;
    args.issued = ran.issued;
    const uint32_t track = trace.track(1, ran.group == "shard" ? 1001 : 1002);
    trace.tracks[track].name = trace.strings.intern("communicator " + std::string(ran.group));
    trace.add_collective("gloo:" + std::string(name_of(ran.kind)), track, ran.start, ran.end, args);
  }

  trace::Trace trace;
  uint32_t main = 0;

 private:
  struct Wait {
    schedule::EventId event;
    Nanoseconds time;
    std::string fqn;
  };
  uint32_t correlation_ = 0, hooks_ = 0, actions_ = 0;
  schedule::EventId events_ = 0;
  int64_t sequence_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace shardlens::test
