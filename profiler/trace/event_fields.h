#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <simdjson.h>

#include "profiler/trace/trace.h"

// How one element of traceEvents becomes an Event; used by the reader alone.
namespace shardlens::trace {

// Why an element of traceEvents was not taken as it stands.
enum class Fault : uint8_t {
  kNoObject,
  kNoTime,
  kBadTime,
  kNoDuration,  // taken, with duration 0
  kNegativeDuration,
  kUnknownPhase,
  kBadArguments,  // taken, without arguments
};
inline constexpr int kFaultCount = 7;

// Token of a number without the white space behind it.
[[nodiscard]] std::string_view number_token(simdjson::ondemand::value value);

// Adds events to a trace, times still relative to the file's base.
//
// Errors  throws simdjson_error for what is no JSON; what is no event is counted as a fault.
class EventBuilder {
 public:
  EventBuilder(Trace& trace, bool keep_args) : trace_(trace), keep_args_(keep_args) {}

  void at(size_t byte) { byte_ = byte; }  // where the next element stands, for messages
  void event(simdjson::ondemand::object object);
  void fault(Fault fault);
  void set_units(const std::vector<std::string>& fqns);
  // Puts the faults into the trace's diagnostics, and units that only events name behind the listed
  // ones.
  void finish();
  [[nodiscard]] std::optional<Nanoseconds> first_time() const {
    return first_time_;
  }  // smallest ts

 private:
  static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();

  enum class Text : uint8_t {
    kCollectiveName,
    kDtype,
    kGroup,
    kGroupDescription,
    kGroupRanks,
    kUnit,
    kBufferUnit,
    kOp,
    kHook,
    kStream,
    kBuffer,
    kCause,
    kAxis,
    kGrads,
    kName,
    kLabels,
    kSyncKind,
    kCount
  };
  enum class Number : uint8_t {
    kInNelems,
    kOutNelems,
    kGroupSize,
    kSeq,
    kHookSeq,
    kAction,
    kIssued,
    kCorrelation,
    kGeneration,
    kEvent,
    kInvocation,
    kSortIndex,
    kEmulated,
    kGradMode,
    kRecompute,
    kExternalId,
    kStreamId,
    kDevice,
    kContext,
    kBytes,
    kGraph,
    kGraphNode,
    kEventId,
    kWaitOnStream,
    kWaitOnRecord,
    kWaitOnEvent,
    kAddress,
    kMemoryBytes,
    kTotalAllocated,
    kTotalReserved,
    kDeviceType,
    kDeviceId,
    kCount
  };
  // An id as written: a number, or a text.
  struct Id {
    int64_t number = 0;
    std::string_view text;
    bool is_text = false;
  };
  // One element, as far as it has been read.
  struct Fields {
    std::string_view phase, category, name;
    Id pid, tid;
    std::optional<Nanoseconds> time, duration;
    bool bad_time = false, has_time = false;
    int64_t id = kAbsent;  // of a flow
    std::string_view raw_args;
    std::array<std::optional<std::string_view>, static_cast<size_t>(Text::kCount)> texts;
    std::array<int64_t, static_cast<size_t>(Number::kCount)> numbers{};

    [[nodiscard]] const std::optional<std::string_view>& operator[](Text key) const {
      return texts[static_cast<size_t>(key)];
    }
    [[nodiscard]] int64_t number(Number key, int64_t absent) const {
      const int64_t value = numbers[static_cast<size_t>(key)];
      return value == kAbsent ? absent : value;
    }
  };

  void read_field(Fields& fields, std::string_view key, simdjson::ondemand::value value);
  void read_args(Fields& fields, simdjson::ondemand::object args);
  void read_argument(Fields& fields, std::string_view key, simdjson::ondemand::value value);
  void name_event(const Fields& fields);
  void timed_event(const Fields& fields, Phase phase);
  bool add_detail(Event& event, const Fields& fields);
  bool add_action(Event& event, const Fields& fields);
  bool add_hook(Event& event, const Fields& fields);
  void add_collective(Event& event, const Fields& fields);
  void add_sync(Event& event, const Fields& fields);
  void add_memory(Event& event, const Fields& fields);
  uint32_t device_row(const Fields& fields);  // kNoIndex: it names no stream
  Category category_of(std::string_view text, uint8_t& other);
  uint32_t track_of(const Fields& fields);
  StringId text_id(const Fields& fields, Text key);
  UnitId unit_id(const std::optional<std::string_view>& fqn);

  Trace& trace_;
  bool keep_args_;
  size_t byte_ = 0;
  struct Count {
    int64_t count = 0;
    size_t first = 0;
  };
  std::array<Count, kFaultCount> faults_;
  std::optional<Nanoseconds> first_time_;
  std::map<std::string, UnitId, std::less<>> units_;
  // Equal rows once; most kernels of a stream share one.
  struct DeviceOrder {
    bool operator()(const DeviceArgs& a, const DeviceArgs& b) const;
  };
  std::map<DeviceArgs, uint32_t, DeviceOrder> device_rows_;
  // Neighbours share track and category: remembers the last ones.
  Id last_pid_, last_tid_;
  uint32_t last_track_ = kNoIndex;
  std::string last_category_text_;
  Category last_category_ = Category::kOther;
  uint8_t last_other_ = 0;
  bool has_last_category_ = false;
};

}  // namespace shardlens::trace
