#include "sim/engine/simulated_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/schedule/collective_of.h"
#include "sim/engine/message.h"

namespace shardlens::sim {
namespace {

using schedule::Action;
using schedule::BufferKind;
using schedule::Op;
using schedule::PlannedItem;
using schedule::Stream;
using trace::Category;

// Process numbers of hosts; Kineto numbers devices from 0.
constexpr int64_t kFirstHostProcess = 100'000;
constexpr int64_t kFirstCommunicatorTrack = 1'000'000'000;  // as in spool_trace.cpp
constexpr int64_t kComputeStream = 7;                       // PyTorch's default stream in Kineto
constexpr int64_t kFirstSideStream = 20;

// `cpu`: the device is the host, so offloading copies within its memory.
std::string_view copy_name(Op op, bool cpu) {
  if (cpu && (op == Op::kToHost || op == Op::kToDevice)) {
    return copy_name(op == Op::kToHost ? Op::kStoreGrad : Op::kCopyIn, cpu);
  }
  switch (op) {
    case Op::kCopyIn:
      return "fsdp::all_gather_copy_in";
    case Op::kCopyOut:
      return "fsdp::split_with_sizes_copy";
    case Op::kReduceCopyIn:
      return "fsdp::chunk_cat";
    case Op::kStoreGrad:
      return "fsdp::store_grad";
    case Op::kToHost:
      return "Memcpy DtoH (Device -> Pinned)";
    default:
      return "Memcpy HtoD (Pinned -> Device)";
  }
}

// The range that PyTorch opens around a hook's work.
std::optional<Range> range_of(const HookEvent& hook) {
  switch (hook.hook) {
    case Hook::kRootPreForward:
      return Range::kRootPreForward;
    case Hook::kPreForward:
      return Range::kPreForward;
    case Hook::kPostForward:
      return Range::kPostForward;
    case Hook::kPreBackward:
      return Range::kPreBackward;
    case Hook::kGradsReady:
      return Range::kPostBackwardReduce;
    case Hook::kBackwardEnd:
      return Range::kRootPostBackward;
    default:
      return std::nullopt;
  }
}

bool marks_a_section(Range range) {
  return range == Range::kPreForward || range == Range::kPostForward ||
         range == Range::kPreBackward;
}

class Writer {
 public:
  Writer(const PricedStep& step,
         const SimulatedStep& simulated,
         int64_t rank,
         const SimulatedRunOptions& options)
      : workload_(*step.workload),
        own_(step.of_ranks == nullptr ? nullptr : &step.of_ranks->at(static_cast<size_t>(rank))),
        plan_(*step.plan),
        step_(*step.planned),
        simulated_(simulated),
        times_(simulated.ranks[simulated.ranks.size() == 1 ? 0 : static_cast<size_t>(rank)].items),
        rank_(rank),
        options_(options),
        cpu_(options.host == HostMode::kCompute) {
    SHARDLENS_CHECK(times_.size() == step_.order.size(), "the step was simulated without times");
  }

  trace::Trace write() {
    describe();
    for (int i = 0; i < options_.steps; ++i) {
      offset_ = simulated_.duration * i;
      trace_.add_complete(Category::kUserAnnotation,
                          fmt::format("ProfilerStep#{}", options_.first_step + i), main_, offset_,
                          offset_ + simulated_.duration);
      write_step();
    }
    return std::move(trace_);
  }

 private:
  void describe() {
    trace::Metadata& metadata = trace_.metadata;
    metadata.rank = rank_;
    metadata.world_size = plan_.world_size;
    metadata.backend = "simulated";
    metadata.trace_name = fmt::format("simulated rank {}", rank_);
    trace_.units = step_.unit_names;
    add_groups();
    const int64_t process = kFirstHostProcess + rank_;
    main_ = trace_.track(process, process);
    trace_.tracks[main_].name = trace_.strings.intern("main");
    trace::Process& host = trace_.process(process);
    host.name = fmt::format("rank {}", rank_);
    host.labels = "simulated host";
    if (cpu_) {
      for (size_t group = 0; group < metadata.groups.size(); ++group) {
        tracks_.push_back(
            trace_.track(process, kFirstCommunicatorTrack + 1 + static_cast<int64_t>(group)));
        trace_.tracks[tracks_[group]].name =
            trace_.strings.intern("communicator " + metadata.groups[group].name);
      }
      return;
    }
    trace::Process& device = trace_.process(rank_);
    device.name = fmt::format("GPU {}", rank_);
    device.labels = options_.device_name.empty() ? "simulated" : options_.device_name;
    for (size_t stream = 0; stream < schedule::kStreamCount; ++stream) {
      tracks_.push_back(trace_.track(
          rank_, stream == 0 ? kComputeStream : kFirstSideStream + static_cast<int64_t>(stream)));
      trace_.tracks[tracks_[stream]].name = trace_.strings.intern(
          fmt::format("stream {}", schedule::name_of(static_cast<Stream>(stream))));
    }
    add_communication_streams();
  }

  // Adds the streams of the groups that the workload communicates over, on a device.
  void add_communication_streams() {
    communication_tracks_.resize(plan_.groups.size());
    for (const plan::Communication& each : workload_.communications) {
      std::optional<size_t>& track = communication_tracks_[each.group];
      if (!track) {
        track = tracks_.size();
        tracks_.push_back(trace_.track(
            rank_, kFirstSideStream + static_cast<int64_t>(schedule::kStreamCount + each.group)));
        trace_.tracks[tracks_.back()].name =
            trace_.strings.intern(fmt::format("stream of {}", plan_.groups[each.group].name));
      }
    }
  }

  void add_groups() {
    for (const mesh::Group& each : plan_.groups) {
      trace::ProcessGroup group;
      group.name = group.description = each.name;
      group.backend_config = "simulated";
      group.size = each.size;
      group.ranks = each.members(rank_);
      groups_.push_back({trace_.strings.intern(group.name),
                         trace_.strings.intern(fmt::format("[{}]", fmt::join(group.ranks, ", "))),
                         each.size});
      trace_.metadata.groups.push_back(std::move(group));
      trace_.groups.push_back(each.name);
    }
  }

  void write_step() {
    const HookEvent* open = nullptr;  // the hook whose actions are being written
    Nanoseconds begin = 0, end = 0;
    const auto close = [&] {
      const auto range = open == nullptr || is_bucket(open->unit) ? std::nullopt : range_of(*open);
      // Some hooks get a range even without actions: it marks where their unit's forward or
      // backward begins or ends.
      if (range && (end > begin || marks_a_section(*range))) {
        trace_.add_complete(Category::kUserAnnotation, range_name(*range, open->unit), main_,
                            offset_ + begin, offset_ + end);
      }
      open = nullptr;
    };
    for (size_t i = 0; i < step_.order.size(); ++i) {
      const PlannedItem& item = step_.order[i];
      const ItemTimes& times = times_[i];
      if (item.kind == PlannedItem::Kind::kAction) {
        if (!is_bucket(step_.actions[item.index].action.unit)) {
          end = std::max({end, times.host.end, on_host(item) ? times.stream.end : end});
        }
        write_action(step_.actions[item.index], times);
        host_ = std::max({host_, end, times.host.end});
        continue;
      }
      close();
      if (item.kind == PlannedItem::Kind::kOperator) {
        write_operator(workload_.operators[item.index], times);
        host_ = std::max(host_, times.host.end);
        continue;
      }
      if (item.kind == PlannedItem::Kind::kCommunication) {
        write_communication(item.index, times);
        host_ = std::max(host_, times.host.end);
        continue;
      }
      if (item.kind == PlannedItem::Kind::kWait) {
        host_ = std::max({host_, times.host.end, cpu_ ? times.stream.end : Nanoseconds{0}});
        continue;
      }
      // A hook that takes no time itself begins with its first action.
      const bool acts =
          i + 1 < step_.order.size() && step_.order[i + 1].kind == PlannedItem::Kind::kAction;
      begin = times.host.start >= 0 ? times.host.start
              : acts                ? times_[i + 1].host.start
                                    : std::max<Nanoseconds>(host_, 0);
      end = std::max(begin, times.host.end);
      open = &step_.hooks[item.index];
      trace::HookArgs args;
      args.seq = ++hooks_;
      args.hook = *open;
      trace_.add_hook(main_, offset_ + begin, args);
    }
    close();
    host_ = 0;
  }

  // Buckets are the Reducer's, which opens no ranges around its work.
  [[nodiscard]] bool is_bucket(UnitId unit) const {
    return unit != kNoUnit && unit >= plan_.units.size();
  }

  // Whether the action's work on its stream is host time: copies and waits on the CPU.
  [[nodiscard]] bool on_host(const PlannedItem& item) const {
    const Stream stream = step_.actions[item.index].action.stream;
    return cpu_ && (stream == Stream::kCompute || stream == Stream::kCopyIn);
  }

  [[nodiscard]] std::string range_name(Range range, UnitId unit) const {
    std::string name(name_of(range));
    if (names_unit(range) && !step_.unit_names[unit].empty()) {
      name += fmt::format(" ({})", step_.unit_names[unit]);
    }
    return name;
  }

  void write_operator(const plan::Operator& op, const ItemTimes& times) {
    const bool runs = times.stream.end >= 0;
    if (cpu_) {
      if (runs) {
        trace_.add_complete(Category::kCpuOp, op.name, main_, offset_ + times.stream.start,
                            offset_ + times.stream.end);
      }
      return;
    }
    if (times.host.end > times.host.start) {
      trace_.add_complete(Category::kCpuOp, op.name, main_, offset_ + times.host.start,
                          offset_ + times.host.end);
    }
    if (runs) {
      kernel(Category::kKernel, op.name, 0, times);
    }
  }

  // Writes the launch of a device event.
  uint32_t launch(const ItemTimes& times) {
    const uint32_t correlation = ++correlation_;
    const uint32_t call = trace_.add_complete(Category::kCudaRuntime, "cudaLaunchKernel", main_,
                                              offset_ + times.host.start, offset_ + times.host.end);
    trace_.events[call].correlation = correlation;
    return correlation;
  }

  void kernel(Category category, std::string_view name, size_t stream, const ItemTimes& times) {
    const uint32_t correlation = launch(times);
    const uint32_t event = trace_.add_complete(
        category, name, tracks_[stream], offset_ + times.stream.start, offset_ + times.stream.end);
    trace_.events[event].correlation = correlation;
    trace_.events[event].detail_kind = trace::ArgsKind::kDevice;
    trace_.events[event].detail = place_of(tracks_[stream]);
  }

  // A collective on a stream, with the range that c10d opens around its launch: other programs
  // recognize communication by one or the other.
  void collective_kernel(CollectiveKind kind,
                         uint32_t track,
                         const ItemTimes& times,
                         trace::CollectiveArgs args) {
    const uint32_t range =
        trace_.add_complete(Category::kUserAnnotation, fmt::format("nccl:{}", name_of(kind)), main_,
                            offset_ + times.host.start, offset_ + times.host.end);
    const uint32_t correlation = launch(times);
    args.device = place_of(track);
    const uint32_t event = trace_.add_collective(
        kernel_name(kind), track, offset_ + times.stream.start, offset_ + times.stream.end, args);
    trace_.events[event].category = Category::kKernel;
    trace_.events[event].correlation = correlation;
    trace_.events[event].external_id = trace_.events[range].external_id = ++external_id_;
  }

  // The row of Trace::devices that says on which stream the events of `track` run.
  uint32_t place_of(uint32_t track) {
    const auto [found, fresh] =
        places_.try_emplace(track, static_cast<uint32_t>(trace_.devices.size()));
    if (fresh) {
      trace::DeviceArgs place;
      place.device = static_cast<int32_t>(trace_.tracks[track].pid);
      place.stream = static_cast<int32_t>(trace_.tracks[track].tid);
      trace_.devices.push_back(place);
    }
    return found->second;
  }

  void write_action(const schedule::PlannedAction& planned, const ItemTimes& times) {
    const Action& action = planned.action;
    trace::ActionArgs args;
    args.seq = ++actions_;
    args.hook_seq = hooks_;
    args.action = action;
    trace_.add_action(main_, offset_ + times.host.start, args);
    write_copy(action, times);
    if (times.stream.end < 0 || action.op == Op::kRecord || action.op == Op::kStreamWait ||
        action.op == Op::kHostWait) {
      return;
    }
    const std::string_view name =
        action.op == Op::kStep ? step_name(action.unit) : copy_name(action.op, cpu_);
    if (schedule::collective_of(action.op)) {
      write_collective(action, times);
    } else if (cpu_) {
      const uint32_t track =
          action.stream == Stream::kCompute || action.stream == Stream::kCopyIn ? main_
          : action.stream == Stream::kAllReduce     ? tracks_[plan::kReplicateGroup]
          : action.stream == Stream::kReduceScatter ? tracks_[plan_.units[action.unit].reduce]
                                                    : tracks_[plan::kShardGroup];
      trace_.add_complete(Category::kCpuOp, name, track, offset_ + times.stream.start,
                          offset_ + times.stream.end);
    } else {
      const bool memcpy = action.op == Op::kToHost || action.op == Op::kToDevice;
      kernel(memcpy ? Category::kGpuMemcpy : Category::kKernel, name,
             static_cast<size_t>(action.stream), times);
    }
  }

  // The optimizer in backward; several operators of one are shown as the first.
  [[nodiscard]] std::string_view step_name(UnitId unit) const {
    const auto found = std::ranges::find(workload_.in_backward, unit, &plan::Operator::unit);
    return found == workload_.in_backward.end() ? "optimizer" : std::string_view(found->name);
  }

  // Copies of gradients: into the tensor that is reduced, or back after the wait for a bucket.
  void write_copy(const Action& action, const ItemTimes& times) {
    if (times.copy.end < 0) {
      return;
    }
    const bool bucket = is_bucket(action.unit);
    const std::string_view name = !bucket                       ? "fsdp::flatten_gradients"
                                  : action.op == Op::kAllReduce ? "aten::mul"
                                                                : "aten::copy_";
    if (cpu_) {
      trace_.add_complete(Category::kCpuOp, name, main_, offset_ + times.copy.start,
                          offset_ + times.copy.end);
    } else {
      kernel(Category::kKernel, name, static_cast<size_t>(Stream::kCompute),
             {times.host, times.copy, {}});
    }
  }

  trace::CollectiveArgs collective_args(CollectiveKind kind,
                                        DType dtype,
                                        mesh::GroupId of,
                                        const ItemTimes& times) {
    Group& group = groups_[of];
    trace::CollectiveArgs args;
    args.collective = trace_.strings.intern(kineto_name(kind));
    args.dtype = trace_.strings.intern(kineto_name(dtype));
    args.group = args.group_description = group.name;
    args.group_ranks = group.ranks;
    args.group_size = static_cast<int32_t>(group.size);
    args.sequence = group.issued++;
    args.issued = offset_ + times.host.start;
    return args;
  }

  // The workload's own communication: no action issued it. Its dtype is not known.
  void write_communication(uint32_t index, const ItemTimes& times) {
    const plan::Communication& each =
        (own_ == nullptr ? workload_ : own_->workload).communications[index];
    if (times.stream.end < 0) {
      return;
    }
    trace::CollectiveArgs args = collective_args(each.kind, DType::kU8, each.group, times);
    const mesh::Group& group = plan_.groups[each.group];
    const int64_t part = each.bytes / group.size, position = group.position(rank_);
    args.in_nelems = each.kind == CollectiveKind::kAllGather ? part : sent_by(each, position);
    args.out_nelems =
        each.kind == CollectiveKind::kReduceScatter ? part : received_by(each, position);
    if (own_ != nullptr && each.kind == CollectiveKind::kAllToAll) {
      args.in_nelems = own_->exchanged.at(index).sent;
      args.out_nelems = own_->exchanged.at(index).received;
    }
    const Nanoseconds start = offset_ + times.stream.start, end = offset_ + times.stream.end;
    if (cpu_) {
      trace_.add_collective(
          fmt::format("simulated:{}{}", name_of(each.kind),
                      each.module.empty() ? "" : fmt::format(" ({})", each.module)),
          tracks_[each.group], start, end, args);
      return;
    }
    collective_kernel(each.kind, tracks_[*communication_tracks_[each.group]], times, args);
  }

  void write_collective(const Action& action, const ItemTimes& times) {
    const CollectiveKind kind = *schedule::collective_of(action.op);
    const Message message = message_of(plan_, step_, action);
    trace::CollectiveArgs args = collective_args(kind, message.dtype, action.group, times);
    args.unit = action.unit;
    args.action = actions_;
    args.in_nelems = message.sent;
    args.out_nelems = message.received;
    const Nanoseconds start = offset_ + times.stream.start, end = offset_ + times.stream.end;
    if (cpu_) {
      const std::string& fqn = step_.unit_names[action.unit];
      const std::string name = fmt::format("simulated:{}{}", name_of(kind),
                                           fqn.empty() ? "" : fmt::format(" ({})", fqn));
      trace_.add_collective(name, tracks_[action.group], start, end, args);
      return;
    }
    collective_kernel(kind, tracks_[static_cast<size_t>(action.stream)], times, args);
  }

  struct Group {
    trace::StringId name = trace::kEmptyString, ranks = trace::kEmptyString;
    int64_t size = 1, issued = 0;
  };

  const plan::Workload& workload_;
  const RankWorkload* own_;  // of the rank, if ranks differ
  const plan::ResolvedPlan& plan_;
  const schedule::PlannedStep& step_;
  const SimulatedStep& simulated_;
  const std::vector<ItemTimes>& times_;
  int64_t rank_;
  const SimulatedRunOptions& options_;
  bool cpu_;
  trace::Trace trace_;
  uint32_t main_ = 0;
  std::vector<uint32_t> tracks_;                             // by stream; on a CPU by mesh::GroupId
  std::vector<std::optional<size_t>> communication_tracks_;  // index into tracks_, by mesh::GroupId
  std::map<uint32_t, uint32_t> places_;                      // rows of Trace::devices, by track
  uint32_t external_id_ = 0;
  std::vector<Group> groups_;  // by mesh::GroupId
  Nanoseconds offset_ = 0, host_ = 0;
  uint32_t hooks_ = 0, actions_ = 0, correlation_ = 0;
};

}  // namespace

trace::Trace simulated_trace(const PricedStep& step,
                             const SimulatedStep& simulated,
                             int64_t rank,
                             const SimulatedRunOptions& options) {
  return Writer(step, simulated, rank, options).write();
}

trace::Run simulated_run(const PricedStep& step,
                         const SimulatedStep& simulated,
                         const SimulatedRunOptions& options) {
  std::vector<trace::Trace> traces;
  for (int64_t rank = 0; rank < step.plan->world_size; ++rank) {
    traces.push_back(simulated_trace(step, simulated, rank, options));
  }
  return trace::Run::of(std::move(traces));
}

}  // namespace shardlens::sim
