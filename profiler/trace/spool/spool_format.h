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

// A spool is a file that one rank appends to while it runs: a header of 64 bytes, then records of
// 64 bytes in the order in which they were written (an event with an end is written when it ends).
// Little-endian, as are all machines that the engine runs on. If the process dies at any byte, all
// whole records before it can be read.

inline constexpr char kSpoolMagic[8] = {'S', 'H', 'L', 'S', 'P', 'O', 'O', 'L'};
inline constexpr uint32_t kSpoolVersion = 5;
inline constexpr uint32_t kOldestSpoolVersion = 3;  // that is still read
inline constexpr size_t kSpoolRecordBytes = 64;

struct SpoolHeader {  // the first bytes of a spool
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t record_bytes = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t process = 0;  // pid; also the id of the training thread, unless a record names another
  uint32_t check = 0;   // checksum as in SpoolRecord
  Nanoseconds created = 0;
  char reserved[24] = {};
};
static_assert(sizeof(SpoolHeader) == kSpoolRecordBytes &&
              std::is_trivially_copyable_v<SpoolHeader>);

enum class SpoolType : uint8_t {  // which of the structs below a record is
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
  kEnd,             // the run ended normally; absent after a fault
  kCollectiveCall,  // the host's call of a collective that runs on a device stream
  // Written by the device's recorder, in no order; correlations connect the records.
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
  kDeviceDropped,     // number of device records lost so far, in SpoolStep::dropped
  kGroup,             // piece of the name of a plan's process group; id = mesh::GroupId
  kOperators,         // up to four operators without shapes
};
inline constexpr int kSpoolTypeCount = 28;

struct SpoolText {  // a piece of a string
  static constexpr size_t kPiece = 44;
  uint32_t id, length, offset;  // length of the whole string, offset of this piece
  char piece[kPiece];
};

struct SpoolStep {  // also kEnd and kDeviceDropped
  int64_t step;
  Nanoseconds time;
  int64_t dropped;  // records not written since the start
  char reserved[32];
};

struct SpoolHook {  // a call of a hook
  uint32_t seq, unit, invocation, thread;
  Nanoseconds time;
  uint8_t hook, grad_mode, recompute, grads;
  char reserved[28];
};

struct SpoolAction {  // an action of the schedule
  uint32_t seq, hook_seq, unit, buffer_unit, generation, event, thread;
  uint8_t op, stream;
  uint8_t group;  // mesh::GroupId
  uint8_t cause;
  Nanoseconds time;
  uint8_t buffer_kind;
  char reserved[15];
};

struct SpoolRange {  // a range of the host, such as FSDP::all_gather
  uint32_t unit, thread;
  Nanoseconds start, end;
  uint8_t range;
  char reserved[31];
};

struct SpoolCollective {  // a collective, or the host's call of one
  uint32_t unit, sequence, action;
  uint16_t group_size, group;  // `group`: id of the text with its name
  int64_t in_nelems, out_nelems;
  union {
    Nanoseconds issued;  // of kCollective
    uint32_t thread;     // of kCollectiveCall: the host's, which was in the call from start to end
  };
  Nanoseconds start, end;
};

struct SpoolOperator {  // an ATen operator or autograd node
  static constexpr size_t kMaxInputs = 8, kMaxDims = 6;
  uint32_t name, thread;  // `name`: id of a text
  Nanoseconds start, end;
  // Number of dimensions of each input; `dims`: their sizes, concatenated.
  uint8_t ranks[kMaxInputs];
  int32_t dims[kMaxDims];
};

struct SpoolOperators {  // operators of a thread, in the order in which they ended
  static constexpr size_t kMost = 4;
  uint32_t thread;
  char reserved[4];
  Nanoseconds start;                       // the earliest
  uint32_t after[kMost], duration[kMost];  // ns; a start is `start` + `after`
  uint16_t name[kMost];
};

// `a`, `b`, `c` for kCollective and kCollectiveCall: kind, dtype, emulated. `a` for kOperator:
// number of inputs whose shapes are in the record (0: not recorded); for kOperators: number of
// operators. Otherwise 0.
struct SpoolRecord {  // NOLINT(cppcoreguidelines-pro-type-member-init): `bytes` covers the union

  SpoolType type = SpoolType::kInvalid;
  uint8_t a = 0, b = 0, c = 0;
  uint32_t check = 0;  // spool_check() of the other bytes
  union {
    char bytes[56] = {};
    SpoolText text;
    SpoolStep step;
    SpoolHook hook;
    SpoolAction action;
    SpoolRange range;
    SpoolCollective collective;
    SpoolOperator op;
    SpoolOperators operators;
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

// Hash of the 64 bytes of a header or record, with the field `check` taken as zero. Never 0 for a
// record of zeros.
[[nodiscard]] uint32_t spool_check(const SpoolRecord& record);
[[nodiscard]] uint32_t spool_check(const SpoolHeader& header);

// The contents of a spool file.
struct Spool {
  std::string source;  // path, for messages
  SpoolHeader header;
  // Valid records in file order, without texts, units and metadata; a kOperators as one kOperator
  // for each.
  std::vector<SpoolRecord> records;
  std::unordered_map<uint32_t, std::string> texts;
  std::vector<std::string> units;           // FQN by UnitId; "unit 7" if the FQN was lost
  std::vector<std::string> groups;          // name by mesh::GroupId; "group 7" if it was lost
  std::string metadata;                     // JSON, or ""
  std::map<uint32_t, std::string> devices;  // JSON by device
  std::vector<std::string> notes;
  bool ended = false;          // the file has the end marker
  int64_t dropped = 0;         // records dropped by the writer, up to its last step or end marker
  int64_t device_dropped = 0;  // records dropped by the device's recorder
  int64_t damaged = 0;         // whole records with a wrong checksum or contents; left out
  Bytes truncated = 0;         // bytes of an incomplete last record; left out
};

// Reads a spool. The file of a killed process is not an error: an incomplete tail and damaged
// records are counted and left out. Every record returned has enumerators in range, times within
// kLatestTime, end >= start, and texts and units that exist. Errors: InputError if the file cannot
// be opened, is not a spool, or has another version.
[[nodiscard]] Spool read_spool(const std::filesystem::path& path);
[[nodiscard]] Spool parse_spool(std::string_view bytes, const std::string& source);

}  // namespace shardlens::trace
