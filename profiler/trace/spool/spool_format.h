#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "core/base/units.h"
#include "profiler/trace/spool/spool_device.h"

namespace shardlens::trace {

// A spool is what one rank appends to while it runs: a header of 64 bytes, then records of 64 bytes
// in the order in which they were kept (an event that has an end is kept when it ends).
// Little-endian, as on every machine the engine runs on. A process may die at any byte: whole
// records before it stay readable.

inline constexpr char kSpoolMagic[8] = {'S', 'H', 'L', 'S', 'P', 'O', 'O', 'L'};
inline constexpr uint32_t kSpoolVersion = 2;
inline constexpr size_t kSpoolRecordBytes = 64;

struct SpoolHeader {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t record_bytes = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t process = 0;  // pid; also the id of the thread that trains, unless a record names another
  uint32_t check = 0;   // as in SpoolRecord, over the other bytes
  Nanoseconds created = 0;
  char reserved[24] = {};
};
static_assert(sizeof(SpoolHeader) == kSpoolRecordBytes &&
              std::is_trivially_copyable_v<SpoolHeader>);

enum class SpoolType : uint8_t {
  kInvalid,
  kText,      // piece of a string that other records refer to by id
  kUnit,      // piece of a unit's FQN; id = UnitId
  kMetadata,  // piece of a JSON object: {"backend", "groups": [{"name", "description", "ranks"}]}
  kStepBegin,
  kStepEnd,
  kHook,
  kAction,
  kRange,
  kCollective,
  kOperator,
  kEnd,             // the run ended; absent after a fault
  kCollectiveCall,  // a collective that a stream of a device runs: the host's call
  // What a device's recorder saw. A spool has these in no order; correlations tie them together.
  kKernel,
  kCopy,  // memcpy or memset
  kGraphNode,
  kApiCall,
  kSync,
  kEventRecord,
  kExternal,
  kOverhead,
  kMemory,
  kAnnotation,
  kDeviceProperties,  // piece of a JSON object as in Kineto's deviceProperties; id = device
  kNote,              // piece of a message for the trace's diagnostics
  kDeviceDropped,     // device records that were lost so far, as in SpoolStep
};
inline constexpr int kSpoolTypeCount = 26;

struct SpoolText {
  static constexpr size_t kPiece = 44;
  uint32_t id, length, offset;  // of the whole string; where this piece starts
  char piece[kPiece];
};

struct SpoolStep {  // and kEnd
  int64_t step;
  Nanoseconds time;
  int64_t dropped;  // records that were not kept, since the start
  char reserved[32];
};

struct SpoolHook {
  uint32_t seq, unit, invocation, thread;
  Nanoseconds time;
  uint8_t hook, grad_mode, recompute, grads;
  char reserved[28];
};

struct SpoolAction {
  uint32_t seq, hook_seq, unit, buffer_unit, generation, event, thread;
  uint8_t op, stream, axis, cause;
  Nanoseconds time;
  uint8_t buffer_kind;
  char reserved[15];
};

struct SpoolRange {
  uint32_t unit, thread;
  Nanoseconds start, end;
  uint8_t range;
  char reserved[31];
};

struct SpoolCollective {
  uint32_t unit, sequence, action;
  uint16_t group_size, group;  // `group`: id of a text, its name
  int64_t in_nelems, out_nelems;
  Nanoseconds issued, start, end;
};

struct SpoolOperator {
  static constexpr size_t kMaxInputs = 8, kMaxDims = 6;
  uint32_t name, thread;  // `name`: id of a text
  Nanoseconds start, end;
  uint8_t ranks[kMaxInputs];  // dimensions of each input; dims holds their sizes one after another
  int32_t dims[kMaxDims];
};

// `a`, `b`, `c`: kCollective, kCollectiveCall: kind, dtype, emulated; kOperator: number of inputs
// whose shapes are known (0: not kept); otherwise 0.
struct SpoolRecord {  // NOLINT(cppcoreguidelines-pro-type-member-init): `bytes` covers the union

  SpoolType type = SpoolType::kInvalid;
  uint8_t a = 0, b = 0, c = 0;
  uint32_t check = 0;  // spool_check() of the rest
  union {
    char bytes[56] = {};
    SpoolText text;
    SpoolStep step;
    SpoolHook hook;
    SpoolAction action;
    SpoolRange range;
    SpoolCollective collective;
    SpoolOperator op;
    SpoolCollectiveCall call;
    SpoolKernel kernel;
    SpoolCopy copy;
    SpoolGraphNode node;
    SpoolApiCall api;
    SpoolSync sync;
    SpoolEventRecord event;
    SpoolExternal external;
    SpoolOverhead overhead;
    SpoolMemory memory;
    SpoolAnnotation annotation;
  };
};
static_assert(sizeof(SpoolRecord) == kSpoolRecordBytes &&
              std::is_trivially_copyable_v<SpoolRecord>);

// Hash of the 64 bytes of a header or record whose field `check` counts as zero. Never 0 for a
// record of zeros.
[[nodiscard]] uint32_t spool_check(const SpoolRecord& record);
[[nodiscard]] uint32_t spool_check(const SpoolHeader& header);

// A spool as read back.
struct Spool {
  std::string source;  // path, for messages
  SpoolHeader header;
  std::vector<SpoolRecord> records;  // valid ones in file order, without texts, units and metadata
  std::unordered_map<uint32_t, std::string> texts;
  std::vector<std::string>
      units;             // FQN by UnitId; "unit 7" where a record names one whose FQN was lost
  std::string metadata;  // JSON, or ""
  std::map<uint32_t, std::string> devices;  // JSON by device
  std::vector<std::string> notes;
  bool ended = false;          // the end marker is there
  int64_t dropped = 0;         // by the writer, as of its last step or end marker
  int64_t device_dropped = 0;  // by the device's recorder
  int64_t damaged = 0;         // whole records whose check or contents are wrong; left out
  Bytes truncated = 0;         // bytes of an incomplete last record; left out
};

// Never fails on what a killed process leaves: an incomplete tail and damaged records are counted
// and left out. Every record returned has enumerators in range, end >= start, and texts and units
// that exist. Errors: InputError for a file that cannot be opened, is no spool, or is of another
// version.
[[nodiscard]] Spool read_spool(const std::filesystem::path& path);
[[nodiscard]] Spool parse_spool(std::string_view bytes, const std::string& source);

}  // namespace shardlens::trace
