#include "profiler/record/device/cupti_records.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <string_view>

#include <cxxabi.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/record/device/occupancy.h"
#include "profiler/record/ranges/nvtx_domain.h"
#include "profiler/trace/model/event_args.h"
#include "profiler/trace/model/overhead_names.h"

namespace shardlens::record {
namespace {

using trace::SpoolRecord;
using trace::SpoolType;

SpoolRecord record_of(SpoolType type) {
  SpoolRecord record;
  record.type = type;
  return record;
}

template <size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, size_t index) {
  return names[index < N ? index : 0];
}

// Names as in Kineto's traces.
constexpr std::array<std::string_view, 11> kCopyKinds{
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr std::array<std::string_view, 8> kMemoryKinds{"Unknown",       "Pageable",      "Pinned",
                                                       "Device",        "Array",         "Managed",
                                                       "Device Static", "Managed Static"};

std::string copy_name(uint8_t copy, uint8_t source, uint8_t target) {
  return fmt::format("Memcpy {} ({} -> {})", name_in(kCopyKinds, copy),
                     name_in(kMemoryKinds, source), name_in(kMemoryKinds, target));
}

std::string_view overhead_name(CUpti_ActivityOverheadKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER:
      return "Driver Compiler";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH:
      return "Buffer Flush";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION:
      return "Instrumentation";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE:
      return "Resource";
    case CUPTI_ACTIVITY_OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING:
      return "Runtime Triggered Module Loading";
    case CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING:
      return "Lazy Function Loading";
    case CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL:
      return "Command Buffer Full";
    case CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST:
      return "Activity Buffer Request";
    case CUPTI_ACTIVITY_OVERHEAD_UVM_ACTIVITY_INIT:
      return "UVM Activity Init";
    default:
      return "Unknown";
  }
}

trace::SyncKind sync_kind(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE:
      return trace::SyncKind::kEvent;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT:
      return trace::SyncKind::kStreamWaitEvent;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE:
      return trace::SyncKind::kStream;
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE:
      return trace::SyncKind::kContext;
    default:
      return trace::SyncKind::kOther;
  }
}

template <typename T, typename U>
T narrowed(U value) {
  return static_cast<T>(std::min<U>(value, static_cast<U>(std::numeric_limits<T>::max())));
}

template <typename T>
const T& as(const CUpti_Activity& record) {
  return reinterpret_cast<const T&>(record);
}

}  // namespace

CUptiResult ActivityParser::parse(uint8_t* buffer, size_t size) {
  CUpti_Activity* record = nullptr;
  for (;;) {
    const CUptiResult result = ::cuptiActivityGetNextRecord(buffer, size, &record);
    if (result != CUPTI_SUCCESS) {
      decide_waiting();
      return result == CUPTI_ERROR_MAX_LIMIT_REACHED ? CUPTI_SUCCESS : result;  // end of the buffer
    }
    take(*record);
  }
}

void ActivityParser::take(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return kernel(as<CUpti_ActivityKernel10>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return copy(as<CUpti_ActivityMemcpy6>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return peer_copy(as<CUpti_ActivityMemcpyPtoP4>(record));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return memset(as<CUpti_ActivityMemset4>(record));
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
      return graph(as<CUpti_ActivityGraphTrace2>(record));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return api_call(as<CUpti_ActivityAPI>(record));
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sync(as<CUpti_ActivitySynchronization2>(record));
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT:
      return event_record(as<CUpti_ActivityCudaEvent2>(record));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return external(as<CUpti_ActivityExternalCorrelation>(record));
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return overhead(as<CUpti_ActivityOverhead3>(record));
    case CUPTI_ACTIVITY_KIND_MEMORY2:
      return memory(as<CUpti_ActivityMemory4>(record));
    case CUPTI_ACTIVITY_KIND_MARKER:
      return marker(as<CUpti_ActivityMarker2>(record));
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return device(as<CUpti_ActivityDevice5>(record));
    default:
      return;  // MARKER_DATA: colours and payloads
  }
}

void ActivityParser::keep_only_windows() {
  const std::lock_guard lock(mutex_);
  only_windows_ = true;
}

void ActivityParser::begin_window(Nanoseconds time) {
  const std::lock_guard lock(mutex_);
  windows_.push_back({time, std::numeric_limits<Nanoseconds>::max()});
}

void ActivityParser::end_window(Nanoseconds time) {
  const std::lock_guard lock(mutex_);
  if (!windows_.empty()) {
    windows_.back().end = std::min(windows_.back().end, time);
  }
}

void ActivityParser::begin_flush(Nanoseconds time) {
  const std::lock_guard lock(mutex_);
  flushes_.emplace_back(time, std::numeric_limits<Nanoseconds>::max());
}

void ActivityParser::end_flush(Nanoseconds time) {
  const std::lock_guard lock(mutex_);
  if (!flushes_.empty()) {
    flushes_.back().second = time;
  }
}

bool ActivityParser::is_own_flush(const CUpti_ActivityOverhead3& o) {
  if (o.overheadKind != CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto start = static_cast<Nanoseconds>(o.start), end = static_cast<Nanoseconds>(o.end);
  // The last flush that begins before the overhead ends.
  const auto after = std::upper_bound(flushes_.begin(), flushes_.end(),
                                      std::pair(end, std::numeric_limits<Nanoseconds>::max()));
  return after != flushes_.begin() && std::prev(after)->second >= start;
}

bool ActivityParser::timed(uint64_t start, uint64_t end) {
  if (start == 0 || end < start) {
    ++untimed_;
    return false;
  }
  return true;
}

bool ActivityParser::keeps_call(uint64_t start, uint64_t end, uint32_t correlation) {
  if (!timed(start, end)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto time = static_cast<Nanoseconds>(start);
  for (Window& window : windows_) {
    if (time < window.begin) {
      window.before = std::max(window.before, correlation);
    } else if (time >= window.end && correlation != 0) {
      window.after = window.after == 0 ? correlation : std::min(window.after, correlation);
    } else if (time < window.end) {
      window.last = std::max(window.last, correlation);
      return true;
    }
  }
  return windows_.empty() && !only_windows_;
}

// The record of a call may come after the records of what it launched, and the calls of several
// threads come in any order. Where correlations of calls are not known yet, the time decides, but
// only for what ran within a window: what ran later may have been launched within it.
std::optional<bool> ActivityParser::keeps_launched(uint64_t start, uint32_t correlation) {
  const std::lock_guard lock(mutex_);
  const auto time = static_cast<Nanoseconds>(start);
  bool open = false;
  for (const Window& w : windows_) {
    const bool begun = w.before != 0 ? correlation > w.before : time >= w.begin;
    const bool ended =
        w.after != 0 ? correlation >= w.after : time >= w.end && correlation > w.last;
    if (begun && !ended) {
      return true;
    }
    open = open || (begun && w.after == 0);
  }
  if (open) {
    return std::nullopt;
  }
  return windows_.empty() && !only_windows_;
}

void ActivityParser::launched(const Launched& event) {
  if (!timed(event.start, event.end)) {
    return;
  }
  const std::optional<bool> keeps = keeps_launched(event.start, event.correlation);
  if (!keeps) {
    waiting_.push_back(event);
  } else if (*keeps) {
    keep(event);
  }
}

void ActivityParser::keep(const Launched& event) {
  if (event.node) {
    recorder_.device(*event.node);
  }
  recorder_.device(event.record);
}

void ActivityParser::decide_waiting() {
  std::erase_if(waiting_, [this](const Launched& event) {
    const std::optional<bool> keeps = keeps_launched(event.start, event.correlation);
    if (keeps && *keeps) {
      keep(event);
    }
    return keeps.has_value();
  });
}

void ActivityParser::finish() {
  decide_waiting();
  waiting_.clear();  // ran after every window, and no record shows that a call within one did it
}

uint32_t ActivityParser::kernel_name(const char* name) {
  const auto [found, added] = kernel_names_.try_emplace(name == nullptr ? "unnamed" : name, 0);
  if (added) {
    int status = 1;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(found->first.c_str(), nullptr, nullptr, &status), std::free);
    found->second = recorder_.text(status == 0 ? text.get() : found->first);
  }
  return found->second;
}

uint32_t ActivityParser::call_name(bool driver, uint32_t cbid) {
  const auto [found, added] = call_names_.try_emplace(uint64_t{driver ? 1U : 0U} << 32 | cbid, 0);
  if (added) {
    const char* text = nullptr;
    const CUpti_CallbackDomain domain =
        driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
    if (::cuptiGetCallbackName(domain, cbid, &text) != CUPTI_SUCCESS || text == nullptr) {
      text = "INVALID";  // as in Kineto
    }
    std::string_view name = text;
    const size_t version = driver ? std::string_view::npos : name.rfind("_v");
    if (version != std::string_view::npos && version + 2 < name.size() &&
        std::all_of(name.begin() + static_cast<ptrdiff_t>(version) + 2, name.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
      name = name.substr(0, version);
    }
    found->second = recorder_.text(name);
  }
  return found->second;
}

std::optional<SpoolRecord> ActivityParser::graph_node(
    uint32_t graph, uint64_t node, uint32_t correlation, uint32_t stream, uint64_t start) {
  if (graph == 0 && node == 0) {
    return std::nullopt;
  }
  SpoolRecord record = record_of(SpoolType::kGraphNode);
  record.node = {.node = node,
                 .start = static_cast<Nanoseconds>(start),
                 .correlation = correlation,
                 .stream = stream,
                 .graph = graph,
                 .reserved = {}};
  return record;
}

void ActivityParser::kernel(const CUpti_ActivityKernel10& k) {
  const auto device = devices_.find(k.deviceId);
  const auto size = [](int32_t n) { return static_cast<uint32_t>(std::max(n, 0)); };
  SpoolRecord record = record_of(SpoolType::kKernel);
  record.kernel = {.name = kernel_name(k.name),
                   .correlation = k.correlationId,
                   .start = static_cast<Nanoseconds>(k.start),
                   .end = static_cast<Nanoseconds>(k.end),
                   .stream = k.streamId,
                   .grid = {size(k.gridX), size(k.gridY), size(k.gridZ)},
                   .block = {narrowed<uint16_t>(size(k.blockX)), narrowed<uint16_t>(size(k.blockY)),
                             narrowed<uint16_t>(size(k.blockZ))},
                   .registers = k.registersPerThread,
                   .shared_memory = size(k.staticSharedMemory) + size(k.dynamicSharedMemory),
                   .context = narrowed<uint16_t>(k.contextId),
                   .device = narrowed<uint8_t>(k.deviceId),
                   .occupancy = device == devices_.end() ? trace::kNoOccupancy
                                                         : occupancy_of(k, device->second)};
  launched({k.start, k.end, k.correlationId, record,
            graph_node(k.graphId, k.graphNodeId, k.correlationId, k.streamId, k.start)});
}

// Records a whole graph as one event on the stream it was launched on.
void ActivityParser::graph(const CUpti_ActivityGraphTrace2& g) {
  SpoolRecord record = record_of(SpoolType::kKernel);
  record.kernel = {.name = recorder_.text(fmt::format("CUDA graph {}", g.graphId)),
                   .correlation = g.correlationId,
                   .start = static_cast<Nanoseconds>(g.start),
                   .end = static_cast<Nanoseconds>(g.end),
                   .stream = g.streamId,
                   .grid = {},
                   .block = {},
                   .registers = 0,
                   .shared_memory = 0,
                   .context = narrowed<uint16_t>(g.contextId),
                   .device = narrowed<uint8_t>(g.deviceId),
                   .occupancy = trace::kNoOccupancy};
  launched({g.start, g.end, g.correlationId, record,
            graph_node(g.graphId, 0, g.correlationId, g.streamId, g.start)});
}

void ActivityParser::moved(const Moved& m, const std::string& name, bool is_memset) {
  SpoolRecord record = record_of(SpoolType::kCopy);
  record.copy = {.name = recorder_.text(name),
                 .correlation = m.correlation,
                 .start = static_cast<Nanoseconds>(m.start),
                 .end = static_cast<Nanoseconds>(m.end),
                 .bytes = static_cast<int64_t>(m.bytes),
                 .stream = m.stream,
                 .context = narrowed<uint16_t>(m.context),
                 .device = narrowed<uint8_t>(m.device),
                 .is_memset = static_cast<uint8_t>(is_memset),
                 .reserved = {}};
  launched({m.start, m.end, m.correlation, record,
            graph_node(m.graph, m.node, m.correlation, m.stream, m.start)});
}

void ActivityParser::copy(const CUpti_ActivityMemcpy6& m) {
  moved({m.start, m.end, m.bytes, m.deviceId, m.contextId, m.streamId, m.correlationId, m.graphId,
         m.graphNodeId},
        copy_name(m.copyKind, m.srcKind, m.dstKind), false);
}

void ActivityParser::peer_copy(const CUpti_ActivityMemcpyPtoP4& m) {
  moved({m.start, m.end, m.bytes, m.deviceId, m.contextId, m.streamId, m.correlationId, m.graphId,
         m.graphNodeId},
        copy_name(m.copyKind, m.srcKind, m.dstKind), false);
}

void ActivityParser::memset(const CUpti_ActivityMemset4& m) {
  moved({m.start, m.end, m.bytes, m.deviceId, m.contextId, m.streamId, m.correlationId, m.graphId,
         m.graphNodeId},
        fmt::format("Memset ({})", name_in(kMemoryKinds, m.memoryKind)), true);
}

void ActivityParser::api_call(const CUpti_ActivityAPI& call) {
  if (!keeps_call(call.start, call.end, call.correlationId)) {
    return;
  }
  const bool driver = call.kind == CUPTI_ACTIVITY_KIND_DRIVER;
  SpoolRecord record = record_of(SpoolType::kApiCall);
  record.api = {.name = call_name(driver, call.cbid),
                .correlation = call.correlationId,
                .thread = call.threadId,
                .is_driver = static_cast<uint8_t>(driver),
                .reserved1 = {},
                .start = static_cast<Nanoseconds>(call.start),
                .end = static_cast<Nanoseconds>(call.end),
                .reserved2 = {}};
  recorder_.device(record);
}

void ActivityParser::sync(const CUpti_ActivitySynchronization2& s) {
  if (!keeps_call(s.start, s.end, s.correlationId)) {
    return;
  }
  const bool no_stream = s.streamId == CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  SpoolRecord record = record_of(SpoolType::kSync);
  record.sync = {.event_sync = s.cudaEventSyncId,
                 .start = static_cast<Nanoseconds>(s.start),
                 .end = static_cast<Nanoseconds>(s.end),
                 .correlation = s.correlationId,
                 .context = s.contextId,
                 .event = s.cudaEventId,
                 .stream = no_stream ? trace::kNoStream : s.streamId,
                 .kind = static_cast<uint8_t>(sync_kind(s.type)),
                 .reserved = {}};
  recorder_.device(record);
}

void ActivityParser::event_record(const CUpti_ActivityCudaEvent2& e) {
  SpoolRecord record = record_of(SpoolType::kEventRecord);
  record.event = {.event_sync = e.cudaEventSyncId,
                  .time = static_cast<Nanoseconds>(e.deviceTimestamp),
                  .correlation = e.correlationId,
                  .context = e.contextId,
                  .stream = e.streamId,
                  .event = e.eventId,
                  .device = narrowed<uint8_t>(e.deviceId),
                  .reserved = {}};
  recorder_.device(record);
}

void ActivityParser::external(const CUpti_ActivityExternalCorrelation& e) {
  if (e.externalKind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) {
    return;  // pushed by another library in this process
  }
  SpoolRecord record = record_of(SpoolType::kExternal);
  record.external = {.id = e.externalId, .correlation = e.correlationId, .reserved = {}};
  recorder_.device(record);
}

void ActivityParser::overhead(const CUpti_ActivityOverhead3& o) {
  if (!keeps_call(o.start, o.end, 0)) {
    return;
  }
  SpoolRecord record = record_of(SpoolType::kOverhead);
  record.overhead = {
      .start = static_cast<Nanoseconds>(o.start),
      .end = static_cast<Nanoseconds>(o.end),
      .name = recorder_.text(is_own_flush(o) ? trace::kOwnFlush : overhead_name(o.overheadKind)),
      .reserved = {}};
  recorder_.device(record);
}

void ActivityParser::memory(const CUpti_ActivityMemory4& m) {
  const bool device = m.memoryKind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  if (!device || !keeps_call(m.timestamp, m.timestamp, 0)) {
    return;
  }
  const auto bytes = static_cast<int64_t>(m.bytes);
  const bool released = m.memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  SpoolRecord record = record_of(SpoolType::kMemory);
  record.memory = {.address = static_cast<int64_t>(m.address),
                   .bytes = released ? -bytes : bytes,
                   .time = static_cast<Nanoseconds>(m.timestamp),
                   .correlation = m.correlationId,
                   .device = narrowed<uint8_t>(m.deviceId),
                   .reserved = {}};
  recorder_.device(record);
}

// The two ends of a range may be in different buffers, which come in any order. An end without a
// begin also belongs to a range that began before recording.
void ActivityParser::marker(const CUpti_ActivityMarker2& m) {
  const bool begins = (m.flags & CUPTI_ACTIVITY_FLAG_MARKER_START) != 0;
  if (!begins && (m.flags & CUPTI_ACTIVITY_FLAG_MARKER_END) == 0) {
    return;
  }
  const auto found = open_ranges_.try_emplace(m.id).first;
  OpenRange& range = found->second;
  if (begins) {
    range.start = static_cast<Nanoseconds>(m.timestamp);
    range.ours = m.domain != nullptr && std::string_view(m.domain) == kNvtxDomain;
    range.thread = m.objectId.pt.threadId;
    range.name = range.ours ? 0 : recorder_.text(m.name == nullptr ? "unnamed" : m.name);
  } else {
    range.end = static_cast<Nanoseconds>(m.timestamp);
  }
  if (range.start != 0 && range.end != 0) {
    close(range);
    open_ranges_.erase(found);
  }
}

void ActivityParser::close(const OpenRange& range) {
  if (!keeps_call(static_cast<uint64_t>(range.start), static_cast<uint64_t>(range.end), 0)) {
    return;
  }
  if (range.ours) {
    ++own_ranges_;
    return;
  }
  SpoolRecord record = record_of(SpoolType::kAnnotation);
  record.annotation = {.start = range.start,
                       .end = range.end,
                       .name = range.name,
                       .thread = range.thread,
                       .reserved = {}};
  recorder_.device(record);
}

// Keys as in Kineto; sizes in bytes.
void ActivityParser::device(const CUpti_ActivityDevice5& d) {
  if (!devices_.try_emplace(d.id, occupancy_limits(d)).second) {
    return;
  }
  const nlohmann::json json{
      {"id", d.id},
      {"name", d.name == nullptr ? "" : d.name},
      {"totalGlobalMem", d.globalMemorySize},
      {"computeMajor", d.computeCapabilityMajor},
      {"computeMinor", d.computeCapabilityMinor},
      {"maxThreadsPerBlock", d.maxThreadsPerBlock},
      {"maxThreadsPerMultiprocessor", d.maxWarpsPerMultiprocessor * d.numThreadsPerWarp},
      {"regsPerBlock", d.maxRegistersPerBlock},
      {"warpSize", d.numThreadsPerWarp},
      {"sharedMemPerBlock", d.maxSharedMemoryPerBlock},
      {"numSms", d.numMultiprocessors},
      {"regsPerMultiprocessor", d.maxRegistersPerMultiprocessor},
      {"sharedMemPerMultiprocessor", d.maxSharedMemoryPerMultiprocessor}};
  recorder_.append_text(SpoolType::kDeviceProperties, d.id, json.dump());
}

}  // namespace shardlens::record
