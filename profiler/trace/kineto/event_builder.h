#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "profiler/trace/json/json_cursor.h"
#include "profiler/trace/kineto/argument_keys.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/model/trace.h"

// Converts one element of traceEvents into an Event. Used only by the reader.
namespace shardlens::trace {

// Why an element of traceEvents was left out or changed.
enum class Fault : uint8_t {
  kNoObject,
  kNoTime,
  kBadTime,
  kNoDuration,  // kept, with duration 0
  kNegativeDuration,
  kUnknownPhase,
  kBadArguments,  // kept, without arguments
  kNotJson,       // kept, NaN and Infinity read as null
  kBadText,       // kept, without the text of its arguments
};
inline constexpr int kFaultCount = 9;

// Adds events to a trace; their times are still relative to the file's base time.
//
// Errors  those of JsonCursor. JSON that is not a valid event is counted as a fault.
class EventBuilder {
 public:
  EventBuilder(Trace& trace, JsonCursor& cursor, const ReadOptions& options)
      : trace_(trace), cursor_(cursor), options_(options) {}

  // Reads the element at the cursor. Nothing is added to the trace yet, because the window may end
  // right after the element, and then it is read again.
  void read();
  // Adds to the trace what read() has read.
  void add();
  void set_units(const std::vector<std::string>& fqns);
  // Adds the counted faults to the trace's diagnostics.
  void finish();
  // Smallest start time of all events, without the base time.
  [[nodiscard]] std::optional<Nanoseconds> first_time() const { return first_time_; }

 private:
  static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();

  // The members of one element, as far as they have been read.
  struct Fields {
    JsonValue phase, category, name, pid, tid, time, duration, id, other;
    std::string_view args;
    uint64_t seen = 0;                                    // bit i: arguments[i] is present
    std::array<JsonValue, kArgumentCount + 1> arguments;  // the last: any unknown key
    static_assert(kArgumentCount < 64);
  };
  // An id as written: a number, or a text.
  struct Id {
    int64_t number = 0;
    StringId text = kEmptyString;
    bool is_text = false;
    friend auto operator<=>(const Id&, const Id&) = default;
  };
  struct KnownTrack {
    int64_t pid = 0, tid = 0;
    uint32_t track = kNoIndex;
  };
  struct KnownCategory {
    std::string text;
    Category category = Category::kOther;
    uint8_t other = 0;
    bool known = false;
  };
  struct DeviceHash {
    size_t operator()(const DeviceArgs& args) const;
  };

  void read_field(std::string_view key);
  void read_args();

  [[nodiscard]] bool has(Argument key) const {
    return (fields_.seen >> static_cast<unsigned>(key) & 1U) != 0;
  }
  [[nodiscard]] const JsonValue& argument(Argument key) const {
    return fields_.arguments[static_cast<size_t>(key)];
  }
  // The value of a number or boolean that is present and fits; otherwise `absent`.
  [[nodiscard]] int64_t number(Argument key, int64_t absent) const;
  [[nodiscard]] uint32_t small(Argument key) const;        // 0: absent or too large
  [[nodiscard]] int32_t small_signed(Argument key) const;  // -1: absent, negative or too large
  [[nodiscard]] int64_t count(Argument key) const;         // -1: absent or negative
  // The text of a string argument that is present; valid until the next call, which may reuse the
  // storage.
  std::optional<std::string_view> text(Argument key);
  StringId text_id(Argument key);
  std::string_view text(const JsonValue& value);
  UnitId unit_id(const std::optional<std::string_view>& fqn);
  std::optional<mesh::GroupId> group_id(std::string_view name);

  void fault(Fault fault);
  void name_event();
  void timed_event(EventPhase phase);
  void emit(const Event& event);
  bool is_needless(const Event& event);
  // The arguments as JSON text, NaN and Infinity replaced by null. Only for arguments that are
  // passed on.
  std::string args_as_json();
  bool read_times(Event& event, EventPhase phase);
  bool add_detail(Event& event);
  bool add_action(Event& event);
  bool add_hook(Event& event);
  void add_collective(Event& event);
  void add_sync(Event& event);
  void add_memory(Event& event);
  StringId annotated_module();
  int64_t comms_id();     // kEmptyString: none
  uint32_t device_row();  // kNoIndex: the event names no stream
  void set_category(Event& event);
  Id id_of(const JsonValue& value);
  uint32_t track_of_fields();
  Process& process_of_fields();

  Trace& trace_;
  JsonCursor& cursor_;
  const ReadOptions& options_;
  uint64_t byte_ = 0;  // where the element begins, for messages
  Fields fields_;
  bool is_object_ = false;
  bool has_flow_ = false;  // of those that ReadOptions::keep_flows is about
  std::string storage_;    // for the last text that had escape sequences
  struct Count {
    int64_t count = 0;
    uint64_t first = 0;
  };
  std::array<Count, kFaultCount> faults_;
  std::optional<Nanoseconds> first_time_;
  Nanoseconds durations_ = 0;  // sum of all events
  std::map<std::string, UnitId, std::less<>> units_;
  std::map<Id, size_t> processes_;  // index into Trace::processes
  std::unordered_map<DeviceArgs, uint32_t, DeviceHash> device_rows_;
  // Small caches of values that repeat often, indexed by a few bits of the value.
  static constexpr size_t kRemembered = 64;
  std::array<KnownTrack, kRemembered> tracks_;
  std::array<KnownCategory, kRemembered> categories_;
  std::array<uint32_t, kRemembered> devices_{};
};

}  // namespace shardlens::trace
