#include "profiler/trace/nsight/nsight_reader.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/collective.h"
#include "core/json/json_values.h"
#include "profiler/trace/kineto/foreign_files.h"
#include "profiler/trace/nsight/nsight_names.h"
#include "profiler/trace/nsight/sqlite_file.h"

namespace shardlens::trace {
namespace {

constexpr std::string_view kMagic("SQLite format 3\0", 16);
constexpr std::string_view kKernels = "CUPTI_ACTIVITY_KIND_KERNEL";
constexpr std::string_view kCopies = "CUPTI_ACTIVITY_KIND_MEMCPY";
constexpr std::string_view kMemsets = "CUPTI_ACTIVITY_KIND_MEMSET";
constexpr std::string_view kCalls = "CUPTI_ACTIVITY_KIND_RUNTIME";
constexpr std::string_view kSyncs = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
constexpr std::string_view kNvtx = "NVTX_EVENTS";

// ENUM_NSYS_EVENT_TYPE
constexpr int64_t kPushPop = 59, kStartEnd = 60, kDomainCreate = 75;

// A serialized GlobalId: the thread in the lowest 24 bits, the process in the next 24.
int64_t process_of(int64_t global) {
  return global / 0x1000000 % 0x1000000;
}
int64_t thread_of(int64_t global) {
  return global % 0x1000000;
}

template <typename T>
T small(int64_t value) {
  return value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max()
             ? static_cast<T>(value)
             : T{};
}

class NsightReader {
 public:
  NsightReader(const std::filesystem::path& path, Progress* progress)
      : path_(path), file_(path), progress_(progress) {}

  std::vector<Trace> read() {
    if (!is_export()) {
      throw NotATrace(path_.string(), words_of(*foreign_kind("", kMagic)));
    }
    read_strings();
    read_start();
    find_processes();
    read_ranges();
    read_calls();
    read_kernels();
    read_copies(kCopies, Category::kGpuMemcpy);
    read_copies(kMemsets, Category::kGpuMemset);
    read_syncs();
    std::vector<Trace> out;
    for (auto& [process, reading] : processes_) {
      finish(process, reading);
      out.push_back(std::move(reading.trace));
    }
    return out;
  }

 private:
  // A range of NCCL's own NVTX domain around a call of its API.
  struct NcclRange {
    uint32_t event = 0;
    nlohmann::json payload;
  };
  struct NcclCall {
    Nanoseconds end = 0;
    CollectiveArgs args;
  };
  struct Process {
    Trace trace;
    std::vector<NcclRange> nccl_ranges;
    std::map<std::pair<uint32_t, Nanoseconds>, NcclCall> nccl;    // by track and start
    std::unordered_map<uint32_t, const NcclCall*> nccl_launches;  // by correlation
    int64_t unusable = 0;
  };

  [[nodiscard]] bool is_export() const {
    try {
      return file_.has_table("StringIds") && file_.has_table("META_DATA_EXPORT");
    } catch (const InputError&) {  // its first page is damaged
      return false;
    }
  }

  void check() {
    if (progress_ != nullptr && ++rows_ % 65536 == 0) {
      progress_->check();
    }
  }

  // The rows of a table; none without it.
  template <typename Each>
  void each(std::string_view table, const std::vector<std::string>& columns, const Each& row) {
    if (!file_.has_table(table)) {
      return;
    }
    SqliteRows rows(file_, table, columns);
    while (rows.next()) {
      check();
      row(rows);
    }
  }

  void read_strings() {
    each("StringIds", {"id", "value"},
         [&](const SqliteRows& row) { strings_[row.integer(0)] = row.text(1); });
  }
  [[nodiscard]] std::string_view string(int64_t id) const {
    const auto found = strings_.find(id);
    return found == strings_.end() ? std::string_view("unknown") : std::string_view(found->second);
  }

  void read_start() {
    each("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs"},
         [&](const SqliteRows& row) { base_ = row.integer(0); });
  }

  // Finds the processes that used a GPU; others (a launcher, data loaders) are no ranks.
  void find_processes() {
    for (const std::string_view table : {kKernels, kCopies, kMemsets}) {
      each(table, {"globalPid"},
           [&](const SqliteRows& row) { processes_[process_of(row.integer(0))]; });
    }
    for (auto& [process, reading] : processes_) {
      Metadata& metadata = reading.trace.metadata;
      metadata.source = path_.string();
      metadata.base_time = base_;
      metadata.backend = "nccl";
    }
    if (processes_.empty()) {
      throw NotATrace(
          path_.string(),
          "an export of Nsight Systems without work of a GPU; record with `nsys profile --trace "
          "cuda,nvtx`");
    }
  }
  Process* process(int64_t global) {
    const auto found = processes_.find(process_of(global));
    return found == processes_.end() ? nullptr : &found->second;
  }

  // The row's event, or kNoIndex if its times cannot be used.
  uint32_t add(Process& reading,
               Category category,
               std::string_view name,
               uint32_t track,
               const SqliteRows& row) {
    const int64_t start = row.integer(0), end = row.integer(1);
    Nanoseconds from = 0, to = 0;
    if (row.is_null(1) || end < start || __builtin_add_overflow(start, base_, &from) ||
        __builtin_add_overflow(end, base_, &to)) {
      ++reading.unusable;
      return kNoIndex;
    }
    return reading.trace.add_complete(category, name, track, from, to);
  }

  // A domain of NVTX, which is a number in each process.
  static std::pair<int64_t, int64_t> domain_of(int64_t thread, int64_t domain) {
    return {process_of(thread), domain};
  }

  void read_ranges() {
    std::set<std::pair<int64_t, int64_t>> nccl;
    each(kNvtx, {"eventType", "globalTid", "text", "textId", "domainId"},
         [&](const SqliteRows& row) {
           if (row.integer(0) == kDomainCreate &&
               (row.is_null(2) ? string(row.integer(3)) : row.text(2)) == "NCCL") {
             nccl.insert(domain_of(row.integer(1), row.integer(4)));
           }
         });
    each(kNvtx,
         {"start", "end", "eventType", "globalTid", "text", "textId", "domainId", "jsonText",
          "jsonTextId"},
         [&](const SqliteRows& row) {
           Process* reading = process(row.integer(3));
           if (reading == nullptr || (row.integer(2) != kPushPop && row.integer(2) != kStartEnd)) {
             return;
           }
           const std::string_view text = row.is_null(4) ? string(row.integer(5)) : row.text(4);
           const uint32_t track =
               reading->trace.track(process_of(row.integer(3)), thread_of(row.integer(3)));
           if (nccl.contains(domain_of(row.integer(3), row.integer(6)))) {
             const uint32_t event = add(*reading, Category::kUserAnnotation, text, track, row);
             auto payload =
                 plan::try_parse_json(row.is_null(7) ? string(row.integer(8)) : row.text(7));
             if (event != kNoIndex && payload && payload->is_object()) {
               reading->nccl_ranges.push_back({event, *std::move(payload)});
             }
             return;
           }
           add_range(*reading, text, track, row);
         });
    for (auto& [id, reading] : processes_) {
      find_nccl_calls(reading);
    }
  }

  void add_range(Process& reading, std::string_view text, uint32_t track, const SqliteRows& row) {
    const NvtxRange range = parse_nvtx(text);
    if (const auto step = step_of_range(range.name)) {
      (void)add(reading, Category::kUserAnnotation, fmt::format("ProfilerStep#{}", *step), track,
                row);
      return;
    }
    const bool is_operator = range.name.size() < text.size() || range.name.starts_with("aten::") ||
                             range.name.starts_with("c10d::");
    const uint32_t event = add(reading, is_operator ? Category::kCpuOp : Category::kUserAnnotation,
                               range.name, track, row);
    if (event != kNoIndex && !range.sizes.empty() && plan::try_parse_json(range.sizes)) {
      reading.trace.set_args(event, fmt::format(R"({{"Input Dims": {}}})", range.sizes));
    }
  }

  // "ncclAllGather" has the payload {"Communicator ID": …, "Message size [bytes]": …}, and
  // "ncclCommInitRank" {"Communicator ID", "No. of ranks", "Rank", …}.
  static void find_nccl_calls(Process& reading) {
    Trace& trace = reading.trace;
    const auto number = [](const NcclRange& range, const char* key) -> std::optional<int64_t> {
      const auto found = range.payload.find(key);
      return found == range.payload.end() ? std::nullopt : plan::integer_of(*found);
    };
    const auto communicator = [](const NcclRange& range) {
      const auto found = range.payload.find("Communicator ID");
      return found == range.payload.end() ? std::string() : found->dump();
    };
    std::sort(reading.nccl_ranges.begin(), reading.nccl_ranges.end(),
              [&](const NcclRange& a, const NcclRange& b) {
                return trace.events[a.event].start < trace.events[b.event].start;
              });
    std::map<std::string, int64_t> sizes;  // of communicators
    for (const NcclRange& range : reading.nccl_ranges) {
      const auto rank = number(range, "Rank"), ranks = number(range, "No. of ranks");
      if (!rank || !ranks) {
        continue;
      }
      if (sizes.empty()) {
        trace.metadata.rank = rank;
        trace.metadata.world_size = ranks;
      }
      sizes.emplace(communicator(range), *ranks);
    }
    for (const NcclRange& range : reading.nccl_ranges) {
      const Event& event = trace.events[range.event];
      const std::optional<CollectiveKind> kind = parse_collective(trace.name(event));
      const auto bytes = number(range, "Message size [bytes]");
      if (!kind || !bytes) {
        continue;
      }
      const std::string id = communicator(range);
      const auto size = sizes.find(id);
      const int64_t ranks = size == sizes.end() ? 0 : size->second;
      // What one rank contributes to a gather, or receives from a reduce-scatter.
      CollectiveArgs args;
      args.collective = trace.strings.intern(kineto_name(*kind));
      args.dtype = trace.strings.intern("Byte");
      args.group = args.group_description = trace.strings.intern(id);
      args.group_size = small<int32_t>(ranks);
      args.in_nelems = args.out_nelems = *bytes;
      if (ranks > 0 && *kind == CollectiveKind::kReduceScatter) {
        args.in_nelems *= ranks;
      } else if (ranks > 0 && *kind == CollectiveKind::kAllGather) {
        args.out_nelems *= ranks;
      }
      args.issued = event.start;
      reading.nccl[{event.track, event.start}] = {event.end(), args};
    }
  }

  // The call of NCCL in which the host was on this thread then.
  static const NcclCall* nccl_call(const Process& reading, uint32_t track, Nanoseconds time) {
    auto call = reading.nccl.upper_bound({track, time});
    if (call == reading.nccl.begin()) {
      return nullptr;
    }
    --call;
    return call->first.first == track && time < call->second.end ? &call->second : nullptr;
  }

  void read_calls() {
    each(kCalls, {"start", "end", "globalTid", "correlationId", "nameId"},
         [&](const SqliteRows& row) {
           Process* reading = process(row.integer(2));
           if (reading == nullptr) {
             return;
           }
           const std::string_view name = without_version(string(row.integer(4)));
           const uint32_t track =
               reading->trace.track(process_of(row.integer(2)), thread_of(row.integer(2)));
           const uint32_t event = add(
               *reading, name.starts_with("cuda") ? Category::kCudaRuntime : Category::kCudaDriver,
               name, track, row);
           if (event == kNoIndex) {
             return;
           }
           const auto correlation = small<uint32_t>(row.integer(3));
           reading->trace.events[event].correlation = correlation;
           if (const NcclCall* call =
                   nccl_call(*reading, track, reading->trace.events[event].start)) {
             reading->nccl_launches.emplace(correlation, call);
           }
         });
  }

  // Columns of the tables of a device's work.
  static const std::vector<std::string>& place_columns() {
    static const std::vector<std::string> kColumns{"start",     "end",        "deviceId",
                                                   "contextId", "streamId",   "correlationId",
                                                   "globalPid", "graphNodeId"};
    return kColumns;
  }
  static DeviceArgs place(const SqliteRows& row) {
    DeviceArgs device;
    device.device = small<int32_t>(row.integer(2));
    device.context = small<int32_t>(row.integer(3));
    device.stream = small<int32_t>(row.integer(4));
    if (!row.is_null(7) && row.integer(7) != 0) {
      device.graph_node = row.integer(7);
    }
    return device;
  }
  static uint32_t stream_track(Process& reading, const DeviceArgs& device) {
    return reading.trace.track(device.device, device.stream);
  }
  static uint32_t device_row(Process& reading, const DeviceArgs& device) {
    reading.trace.devices.push_back(device);
    return static_cast<uint32_t>(reading.trace.devices.size() - 1);
  }
  static void set_device(Process& reading, uint32_t event, const DeviceArgs& device) {
    reading.trace.events[event].detail_kind = ArgsKind::kDevice;
    reading.trace.events[event].detail = device_row(reading, device);
  }

  void read_kernels() {
    std::vector<std::string> columns = place_columns();
    columns.insert(columns.end(), {"demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY",
                                   "blockZ", "registersPerThread"});
    each(kKernels, columns, [&](const SqliteRows& row) {
      Process* reading = process(row.integer(6));
      DeviceArgs device = place(row);
      const std::string_view name = string(row.integer(8));
      const auto correlation = small<uint32_t>(row.integer(5));
      const uint32_t track = stream_track(*reading, device);
      const uint32_t event = add(*reading, Category::kKernel, name, track, row);
      if (event == kNoIndex) {
        return;
      }
      reading->trace.events[event].correlation = correlation;
      device.launch = launch_row(*reading, row);
      const auto call = reading->nccl_launches.find(correlation);
      if (call == reading->nccl_launches.end() || !name.starts_with("nccl")) {
        set_device(*reading, event, device);
        return;
      }
      CollectiveArgs args = call->second->args;
      args.device = device_row(*reading, device);
      reading->trace.events[event].detail_kind = ArgsKind::kCollective;
      reading->trace.events[event].detail =
          static_cast<uint32_t>(reading->trace.collectives.size());
      reading->trace.collectives.push_back(args);
    });
  }

  static uint32_t launch_row(Process& reading, const SqliteRows& row) {
    LaunchArgs launch;
    for (int i = 0; i < 3; ++i) {
      launch.grid[i] = small<uint32_t>(row.integer(9 + i));
      launch.block[i] = small<uint16_t>(row.integer(12 + i));
    }
    launch.registers = small<uint16_t>(row.integer(15));
    auto& launches = reading.trace.launches;
    if (launches.empty() || !(launches[launches.size() - 1] == launch)) {
      launches.push_back(launch);
    }
    return static_cast<uint32_t>(launches.size() - 1);
  }

  void read_copies(std::string_view table, Category category) {
    std::vector<std::string> columns = place_columns();
    columns.insert(columns.end(), {"bytes", "copyKind", "srcKind", "dstKind", "memKind"});
    each(table, columns, [&](const SqliteRows& row) {
      Process* reading = process(row.integer(6));
      DeviceArgs device = place(row);
      device.bytes = row.integer(8);
      const std::string name = category == Category::kGpuMemcpy
                                   ? copy_name(row.integer(9), row.integer(10), row.integer(11))
                                   : memset_name(row.is_null(12) ? 2 : row.integer(12));
      const uint32_t event = add(*reading, category, name, stream_track(*reading, device), row);
      if (event != kNoIndex) {
        reading->trace.events[event].correlation = small<uint32_t>(row.integer(5));
        set_device(*reading, event, device);
      }
    });
  }

  void read_syncs() {
    std::vector<std::string> columns = place_columns();
    columns.insert(columns.end(), {"syncType", "eventId"});
    each(kSyncs, columns, [&](const SqliteRows& row) {
      Process* reading = process(row.integer(6));
      if (reading == nullptr) {
        return;
      }
      // ENUM_CUPTI_SYNC_TYPE
      constexpr std::array<SyncKind, 5> kKinds{SyncKind::kOther, SyncKind::kEvent,
                                               SyncKind::kStreamWaitEvent, SyncKind::kStream,
                                               SyncKind::kContext};
      SyncArgs args;
      const int64_t type = row.integer(8);
      args.kind = type > 0 && type < 5 ? kKinds[static_cast<size_t>(type)] : SyncKind::kOther;
      args.device = small<int32_t>(row.integer(2));
      args.stream = small<int32_t>(row.integer(4));
      if (args.kind == SyncKind::kEvent || args.kind == SyncKind::kStreamWaitEvent) {
        args.wait_on_event = row.integer(9);
      }
      const uint32_t event = add(*reading, Category::kCudaSync, name_of(args.kind),
                                 reading->trace.track(args.device, args.stream), row);
      if (event == kNoIndex) {
        return;
      }
      reading->trace.events[event].correlation = small<uint32_t>(row.integer(5));
      reading->trace.events[event].detail_kind = ArgsKind::kSync;
      reading->trace.events[event].detail = static_cast<uint32_t>(reading->trace.syncs.size());
      reading->trace.syncs.push_back(args);
    });
  }

  static void finish(int64_t process, Process& reading) {
    Trace& trace = reading.trace;
    trace.process(process).name = fmt::format("process {}", process);
    if (reading.unusable > 0) {
      add_diagnostic(trace.diagnostics, Severity::kWarning,
                     "rows without an end, or whose times do not fit", reading.unusable);
    }
  }

  std::filesystem::path path_;
  SqliteFile file_;
  Progress* progress_;
  uint64_t rows_ = 0;
  Nanoseconds base_ = 0;
  std::unordered_map<int64_t, std::string> strings_;
  std::map<int64_t, Process> processes_;  // by process id
};

}  // namespace

bool is_sqlite(std::string_view head) {
  return head.starts_with(kMagic);
}

std::vector<Trace> read_nsight(const std::filesystem::path& path, Progress* progress) {
  return NsightReader(path, progress).read();
}

}  // namespace shardlens::trace
