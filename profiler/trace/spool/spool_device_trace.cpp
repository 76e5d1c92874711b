#include "profiler/trace/spool/spool_device_trace.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/json/json_values.h"

namespace shardlens::trace {
namespace {

// Row for the recorder's own overhead, as in Kineto.
constexpr int64_t kOverheadProcess = -1;

// Ranges of one thread, to find the innermost range around an instant; queries may come in any
// order.
class ThreadRanges {
 public:
  struct Range {
    Nanoseconds start, end;
    uint32_t index;  // chosen by the caller
  };

  void add(Nanoseconds start, Nanoseconds end, uint32_t index) {
    ranges_.push_back({start, end, index});
  }
  void sort() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    parents_.assign(ranges_.size(), -1);
    std::vector<int64_t> open;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      while (!open.empty() && ranges_[static_cast<size_t>(open.back())].end <= ranges_[i].start) {
        open.pop_back();
      }
      parents_[i] = open.empty() ? -1 : open.back();
      open.push_back(static_cast<int64_t>(i));
    }
  }
  [[nodiscard]] std::optional<uint32_t> around(Nanoseconds instant) const {
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), instant,
                                        [](Nanoseconds t, const Range& r) { return t < r.start; });
    for (int64_t i = after - ranges_.begin() - 1; i >= 0; i = parents_[static_cast<size_t>(i)]) {
      const Range& range = ranges_[static_cast<size_t>(i)];
      if (instant < range.end) {
        return range.index;
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<Range> ranges_;  // nested or disjoint, as ranges of one thread are
  std::vector<int64_t> parents_;
};

class DeviceRecords {
 public:
  DeviceRecords(const Spool& spool, const SpoolTracks& tracks, Trace& trace)
      : spool_(spool), tracks_(tracks), trace_(trace) {}

  void add_all() {
    read_properties();
    index();
    add_calls();
    for (const SpoolRecord& record : spool_.records) {
      add(record);
    }
    add_hulls();
  }

 private:
  struct Launch {
    uint32_t thread = 0, track = 0;
    Nanoseconds start = 0;
  };
  struct Hull {
    Nanoseconds start, end;
  };

  void read_properties() {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& [id, text] : spool_.devices) {
      std::optional<nlohmann::json> device = plan::try_parse_json(text);
      if (!device || !device->is_object()) {
        continue;  // the text may be cut off after a fault
      }
      if (const auto sms = device->find("numSms"); sms != device->end()) {
        const int64_t count = plan::integer_of(*sms).value_or(0);
        multiprocessors_[id] = static_cast<int32_t>(std::clamp<int64_t>(count, 0, INT32_MAX));
      }
      list.push_back(*std::move(device));
    }
    if (!list.empty()) {
      trace_.metadata.device_properties = list.dump();
    }
  }

  // Indexes what other records refer to by correlation, context or thread.
  void index() {
    for (uint32_t i = 0; i < spool_.records.size(); ++i) {
      const SpoolRecord& record = spool_.records[i];
      switch (record.type) {
        case SpoolType::kExternal:
          externals_[record.external.correlation] = record.external.id;
          break;
        case SpoolType::kKernel:
          contexts_[record.kernel.context] = record.kernel.device;
          break;
        case SpoolType::kCopy:
          contexts_[record.copy.context] = record.copy.device;
          break;
        case SpoolType::kEventRecord:
          by_event_sync_[record.event.event_sync] = &record.event;
          by_event_[{record.event.context, record.event.event, record.event.correlation}] =
              &record.event;
          break;
        case SpoolType::kGraphNode:
          nodes_[{record.node.correlation, record.node.start, record.node.stream}] = &record.node;
          break;
        case SpoolType::kRange:
          ranges_[record.range.thread].add(record.range.start, record.range.end, i);
          break;
        case SpoolType::kAnnotation:
          ranges_[record.annotation.thread].add(record.annotation.start, record.annotation.end, i);
          break;
        case SpoolType::kCollectiveCall:
          collective_calls_[record.collective.thread].add(record.collective.start,
                                                          record.collective.end, i);
          break;
        default:
          break;
      }
    }
    for (auto* index : {&ranges_, &collective_calls_}) {
      for (auto& [thread, ranges] : *index) {
        ranges.sort();
      }
    }
  }

  void add_calls() {
    for (const SpoolRecord& record : spool_.records) {
      if (record.type != SpoolType::kApiCall) {
        continue;
      }
      const SpoolApiCall& call = record.api;
      const uint32_t track = tracks_.of_thread(call.thread);
      const Category category =
          call.is_driver != 0 ? Category::kCudaDriver : Category::kCudaRuntime;
      const uint32_t event =
          trace_.add_complete(category, spool_.texts.at(call.name), track, call.start, call.end);
      trace_.events[event].correlation = call.correlation;
      trace_.events[event].external_id = external_id(call.correlation);
      // A runtime call and the driver call within it may have the same correlation: the outer call
      // is used.
      const auto [launch, added] =
          launches_.try_emplace(call.correlation, Launch{call.thread, track, call.start});
      if (!added && call.start < launch->second.start) {
        launch->second = {call.thread, track, call.start};
      }
    }
  }

  void add(const SpoolRecord& record) {
    switch (record.type) {
      case SpoolType::kKernel:
        add_kernel(record.kernel);
        break;
      case SpoolType::kCopy:
        add_copy(record.copy);
        break;
      case SpoolType::kSync:
        add_sync(record.sync);
        break;
      case SpoolType::kOverhead:
        add_overhead(record.overhead);
        break;
      case SpoolType::kMemory:
        add_memory(record.memory);
        break;
      case SpoolType::kAnnotation:
        trace_.add_complete(Category::kUserAnnotation, spool_.texts.at(record.annotation.name),
                            tracks_.of_thread(record.annotation.thread), record.annotation.start,
                            record.annotation.end);
        break;
      case SpoolType::kCollectiveCall:
        add_collective_call(record);
        break;
      default:
        break;
    }
  }

  // Adds the event that Kineto writes for c10d's call, from which analyses read a kernel's
  // arguments.
  void add_collective_call(const SpoolRecord& record) {
    const SpoolCollective& call = record.collective;
    const uint32_t event =
        trace_.add_collective("record_param_comms", tracks_.of_thread(call.thread), call.start,
                              call.end, tracks_.arguments(record));
    trace_.events[event].category = Category::kCpuOp;
  }

  void add_kernel(const SpoolKernel& kernel) {
    DeviceArgs device = place(kernel.device, kernel.context, kernel.stream);
    add_node(device, kernel.correlation, kernel.start, kernel.stream);
    LaunchArgs launch;
    std::copy_n(kernel.grid, 3, launch.grid);
    std::copy_n(kernel.block, 3, launch.block);
    launch.registers = kernel.registers;
    launch.shared_memory = kernel.shared_memory;
    launch.occupancy = kernel.occupancy == kNoOccupancy ? -1 : kernel.occupancy;
    if (const auto known = multiprocessors_.find(kernel.device); known != multiprocessors_.end()) {
      launch.multiprocessors = known->second;
    }
    device.launch = row_of(launch, launch_rows_, trace_.launches);
    const std::string& name = spool_.texts.at(kernel.name);
    const uint32_t track = stream_track(kernel.device, kernel.stream);
    const SpoolRecord* call = collective_call(kernel.correlation);
    uint32_t event = 0;
    if (call != nullptr) {
      CollectiveArgs args = tracks_.arguments(*call);
      args.device = device_row(device);
      event = trace_.add_collective(name, track, kernel.start, kernel.end, args);
      trace_.events[event].category = Category::kKernel;
    } else {
      event = trace_.add_complete(Category::kKernel, name, track, kernel.start, kernel.end);
      set_device(event, device);
    }
    finish(event, kernel.correlation);
  }

  void add_copy(const SpoolCopy& copy) {
    DeviceArgs device = place(copy.device, copy.context, copy.stream);
    device.bytes = copy.bytes;
    add_node(device, copy.correlation, copy.start, copy.stream);
    const uint32_t event = trace_.add_complete(
        copy.is_memset != 0 ? Category::kGpuMemset : Category::kGpuMemcpy,
        spool_.texts.at(copy.name), stream_track(copy.device, copy.stream), copy.start, copy.end);
    set_device(event, device);
    finish(event, copy.correlation);
  }

  // CUPTI also has such a record for a query that finds the work finished. Queries are not
  // recorded as calls, so that these records have no call.
  void add_sync(const SpoolSync& sync) {
    SyncArgs args;
    args.kind = static_cast<SyncKind>(sync.kind);
    const bool by_host = args.kind == SyncKind::kEvent || args.kind == SyncKind::kStream;
    if (by_host && !launches_.contains(sync.correlation)) {
      return;
    }
    const auto context = contexts_.find(sync.context);
    args.device = context == contexts_.end() ? -1 : context->second;
    args.stream = sync.stream == kNoStream ? -1 : static_cast<int32_t>(sync.stream);
    if (args.kind == SyncKind::kEvent || args.kind == SyncKind::kStreamWaitEvent) {
      args.wait_on_event = sync.event;
      if (const SpoolEventRecord* awaited = awaited_by(sync)) {
        args.wait_on_stream = static_cast<int32_t>(awaited->stream);
        args.wait_on_record = awaited->correlation;
      }
    }
    const uint32_t track = args.device < 0
                               ? tracks_.of_thread(static_cast<uint32_t>(spool_.header.process))
                               : stream_track(static_cast<uint8_t>(args.device), sync.stream);
    const uint32_t event =
        trace_.add_complete(Category::kCudaSync, name_of(args.kind), track, sync.start, sync.end);
    trace_.events[event].detail_kind = ArgsKind::kSync;
    trace_.events[event].detail = static_cast<uint32_t>(trace_.syncs.size());
    trace_.syncs.push_back(args);
    trace_.events[event].correlation = sync.correlation;
    trace_.events[event].external_id = external_id(sync.correlation);
  }

  // The record with the same event_sync; without that, the last record of the event before the
  // wait.
  [[nodiscard]] const SpoolEventRecord* awaited_by(const SpoolSync& sync) const {
    if (sync.event_sync != 0) {
      const auto found = by_event_sync_.find(sync.event_sync);
      return found == by_event_sync_.end() ? nullptr : found->second;
    }
    const auto after = by_event_.lower_bound({sync.context, sync.event, sync.correlation});
    if (after == by_event_.begin()) {
      return nullptr;
    }
    const SpoolEventRecord* last = std::prev(after)->second;
    return last->context == sync.context && last->event == sync.event ? last : nullptr;
  }

  void add_overhead(const SpoolOverhead& overhead) {
    Process& process = trace_.process(kOverheadProcess);
    process.name = "recorder";
    trace_.add_complete(Category::kOverhead, spool_.texts.at(overhead.name),
                        trace_.track(kOverheadProcess, 0), overhead.start, overhead.end);
  }

  // Allocations from the driver. The totals count only what was recorded, since recording began.
  void add_memory(const SpoolMemory& memory) {
    MemoryArgs args;
    args.address = memory.address;
    args.bytes = memory.bytes;
    int64_t& reserved = reserved_[memory.device];
    if (__builtin_add_overflow(reserved, memory.bytes, &reserved)) {
      reserved = 0;  // a damaged record that passed the checks
    }
    args.total_allocated = -1;  // what the caching allocator gave out is not known to the driver
    args.total_reserved = reserved;
    args.device_type = 1;  // c10::DeviceType::CUDA
    args.device = memory.device;
    const auto launch = launches_.find(memory.correlation);
    const uint32_t track = launch == launches_.end()
                               ? tracks_.of_thread(static_cast<uint32_t>(spool_.header.process))
                               : launch->second.track;
    const uint32_t event =
        trace_.add_complete(Category::kOther, "[memory]", track, memory.time, memory.time);
    Event& e = trace_.events[event];
    e.phase = EventPhase::kInstant;
    e.other_category = trace_.other_category("cpu_instant_event");
    e.detail_kind = ArgsKind::kMemory;
    e.detail = static_cast<uint32_t>(trace_.memory_events.size());
    trace_.memory_events.push_back(args);
  }

  // Adds the flow from the launch of an event, and extends the hull of the range it was launched
  // in.
  void finish(uint32_t index, uint32_t correlation) {
    trace_.events[index].correlation = correlation;
    trace_.events[index].external_id = external_id(correlation);
    const Event event = trace_.events[index];
    const auto launch = launches_.find(correlation);
    if (launch == launches_.end()) {
      return;
    }
    add_flow(EventPhase::kFlowStart, launch->second.track, launch->second.start, correlation);
    add_flow(EventPhase::kFlowEnd, event.track, event.start, correlation);
    const auto ranges = ranges_.find(launch->second.thread);
    const auto range =
        ranges == ranges_.end() ? std::nullopt : ranges->second.around(launch->second.start);
    if (range) {
      const auto [hull, added] =
          hulls_.try_emplace({*range, event.track}, Hull{event.start, event.end()});
      hull->second.start = std::min(hull->second.start, event.start);
      hull->second.end = std::max(hull->second.end, event.end());
    }
  }

  void add_flow(EventPhase phase, uint32_t track, Nanoseconds time, uint32_t correlation) {
    const uint32_t event = trace_.add_complete(Category::kAc2g, "ac2g", track, time, time);
    trace_.events[event].phase = phase;
    trace_.events[event].correlation = correlation;
  }

  void add_hulls() {
    for (const auto& [key, hull] : hulls_) {
      const SpoolRecord& record = spool_.records[key.first];
      const std::string name = record.type == SpoolType::kAnnotation
                                   ? spool_.texts.at(record.annotation.name)
                                   : tracks_.name_of_range(record.range);
      trace_.add_complete(Category::kGpuUserAnnotation, name, key.second, hull.start, hull.end);
    }
  }

  [[nodiscard]] const SpoolRecord* collective_call(uint32_t correlation) const {
    const auto launch = launches_.find(correlation);
    if (launch == launches_.end()) {
      return nullptr;
    }
    const auto calls = collective_calls_.find(launch->second.thread);
    const auto call = calls == collective_calls_.end() ? std::nullopt
                                                       : calls->second.around(launch->second.start);
    return call ? &spool_.records[*call] : nullptr;
  }

  [[nodiscard]] uint32_t external_id(uint32_t correlation) const {
    const auto found = externals_.find(correlation);
    return found == externals_.end() ? 0 : static_cast<uint32_t>(found->second);
  }

  static DeviceArgs place(uint8_t device, uint16_t context, uint32_t stream) {
    DeviceArgs args;
    args.device = device;
    args.context = context;
    args.stream = static_cast<int32_t>(stream);
    return args;
  }

  void add_node(DeviceArgs& args, uint32_t correlation, Nanoseconds start, uint32_t stream) const {
    if (const auto node = nodes_.find({correlation, start, stream}); node != nodes_.end()) {
      args.graph = node->second->graph;
      args.graph_node = static_cast<int64_t>(node->second->node);
    }
  }

  void set_device(uint32_t event, const DeviceArgs& args) {
    trace_.events[event].detail_kind = ArgsKind::kDevice;
    trace_.events[event].detail = device_row(args);
  }

  uint32_t device_row(const DeviceArgs& args) {
    const DeviceKey key{args.bytes,   args.graph_node, args.graph, args.device,
                        args.context, args.stream,     args.launch};
    const auto [row, added] =
        device_rows_.try_emplace(key, static_cast<uint32_t>(trace_.devices.size()));
    if (added) {
      trace_.devices.push_back(args);
    }
    return row->second;
  }

  template <typename T>
  static uint32_t row_of(const T& value, std::map<T, uint32_t>& rows, GrowingArray<T>& table) {
    const auto [row, added] = rows.try_emplace(value, static_cast<uint32_t>(table.size()));
    if (added) {
      table.push_back(value);
    }
    return row->second;
  }

  uint32_t stream_track(uint8_t device, uint32_t stream) {
    const int64_t tid = stream == kNoStream ? -1 : static_cast<int64_t>(stream);
    const auto [it, added] = streams_.try_emplace({device, tid}, 0);
    if (added) {
      it->second = trace_.track(device, tid);
      Track& track = trace_.tracks[it->second];
      track.name = trace_.strings.intern(fmt::format("stream {}", tid));
      track.sort_index = tid;
      Process& process = trace_.process(device);
      process.name = fmt::format("rank {}", spool_.header.rank);
      process.labels = fmt::format("GPU {}", device);
    }
    return it->second;
  }

  using DeviceKey = std::tuple<int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, uint32_t>;

  const Spool& spool_;
  const SpoolTracks& tracks_;
  Trace& trace_;
  std::map<uint32_t, int32_t> multiprocessors_;  // by device
  std::map<uint32_t, uint8_t> contexts_;         // to devices
  std::unordered_map<uint32_t, uint64_t> externals_;
  std::unordered_map<uint32_t, Launch> launches_;
  std::unordered_map<uint64_t, const SpoolEventRecord*> by_event_sync_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, const SpoolEventRecord*>
      by_event_;  // by (context, event, correlation)
  std::map<std::tuple<uint32_t, Nanoseconds, uint32_t>, const SpoolGraphNode*> nodes_;
  std::map<uint32_t, ThreadRanges> ranges_, collective_calls_;  // by thread
  std::map<std::pair<uint32_t, uint32_t>, Hull> hulls_;         // by (range, track)
  std::map<std::pair<uint8_t, int64_t>, uint32_t> streams_;     // to tracks
  std::map<DeviceKey, uint32_t> device_rows_;
  std::map<LaunchArgs, uint32_t> launch_rows_;
  std::map<uint8_t, int64_t> reserved_;  // bytes by device
};

}  // namespace

void add_device_records(const Spool& spool, const SpoolTracks& tracks, Trace& trace) {
  DeviceRecords(spool, tracks, trace).add_all();
}

}  // namespace shardlens::trace
