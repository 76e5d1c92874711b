#include "profiler/trace/spool/spool_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/hook.h"
#include "core/base/recorder.h"
#include "core/files/input_file.h"
#include "core/mesh/mesh.h"
#include "core/schedule/action.h"
#include "profiler/trace/model/event_args.h"
#include "profiler/trace/model/latest_time.h"
#include "profiler/trace/model/owner.h"

namespace shardlens::trace {
namespace {

constexpr uint32_t kMaxTextBytes = 1U << 20;           // a longer text is taken for damage
constexpr size_t kBlockRecords = size_t{1} << 14;      // 1 MiB
constexpr uint64_t kLargestSpool = uint64_t{5} << 30;  // more than the largest --record-limit
constexpr int kCollectiveCount = 7, kDTypeCount = 10;

uint32_t hash_words(const std::array<uint64_t, kSpoolRecordBytes / 8>& words) {
  uint64_t h = 0x9E3779B97F4A7C15ULL;
  for (const uint64_t word : words) {
    h = (h ^ word) * 0xD6E8FEB86659FD93ULL;
    h ^= h >> 32;
  }
  return static_cast<uint32_t>(h);
}

// Hashes a copy whose field `check` is zero. All 64 bytes are hashed, so padding must be written as
// zeros (all fields are explicit).
template <typename T>
uint32_t check_of(T copy) {
  copy.check = 0;
  std::array<uint64_t, kSpoolRecordBytes / 8> words{};
  std::memcpy(words.data(), &copy, sizeof(copy));
  return hash_words(words);
}

// Assembles strings from pieces with consecutive offsets.
class TextAssembler {
 public:
  // False if the piece does not continue the pieces before.
  bool add(const SpoolText& text) {
    if (text.length > kMaxTextBytes || text.offset > text.length) {
      return false;
    }
    std::string& whole = texts_[text.id];
    if (text.offset == 0) {
      whole.clear();
    }
    if (whole.size() != text.offset) {
      return false;
    }
    whole.append(text.piece, std::min<size_t>(SpoolText::kPiece, text.length - text.offset));
    return true;
  }
  [[nodiscard]] const std::map<uint32_t, std::string>& texts() const { return texts_; }

 private:
  std::map<uint32_t, std::string> texts_;
};

bool possible(Nanoseconds time) {
  return time >= -kLatestTime && time <= kLatestTime;
}

bool possible(Nanoseconds start, Nanoseconds end) {
  return possible(start) && possible(end) && end >= start;
}

bool ends_after(Nanoseconds start, Nanoseconds end) {
  return start > 0 && possible(start, end);
}

bool valid_unit(uint32_t unit) {
  return unit == kNoUnit || unit < kMaxUnits;
}

bool valid_hook(const SpoolHook& h) {
  return h.hook < kHookCount && h.grads < kGradsCount && valid_unit(h.unit) && possible(h.time);
}

bool valid_action(const SpoolAction& a) {
  return a.op < schedule::kOpCount && a.stream < schedule::kStreamCount &&
         a.cause < schedule::kCauseCount && a.buffer_kind < schedule::kBufferKindCount &&
         valid_unit(a.unit) && valid_unit(a.buffer_unit) && possible(a.time);
}

bool valid_operator(const SpoolRecord& record) {
  const SpoolOperator& op = record.op;
  if (record.a > SpoolOperator::kMaxInputs) {
    return false;
  }
  size_t dims = 0;
  for (size_t i = 0; i < record.a; ++i) {
    dims += op.ranks[i];
  }
  return dims <= SpoolOperator::kMaxDims && possible(op.start, op.end);
}

bool valid_operators(const SpoolRecord& record) {
  const SpoolOperators& all = record.operators;
  if (record.a == 0 || record.a > SpoolOperators::kMost || !possible(all.start)) {
    return false;
  }
  for (size_t i = 0; i < record.a; ++i) {
    if (!possible(all.start + all.after[i] + all.duration[i])) {
      return false;
    }
  }
  return true;
}

bool valid_device_record(const SpoolRecord& record) {
  switch (record.type) {
    case SpoolType::kDeviceProperties:
    case SpoolType::kNote:
    case SpoolType::kDeviceDropped:
    case SpoolType::kExternal:
      return true;
    case SpoolType::kKernel:
      return ends_after(record.kernel.start, record.kernel.end);
    case SpoolType::kCopy:
      return ends_after(record.copy.start, record.copy.end) && record.copy.bytes >= 0 &&
             record.copy.is_memset <= 1;
    case SpoolType::kGraphNode:
      return record.node.start > 0 && possible(record.node.start);
    case SpoolType::kApiCall:
      return ends_after(record.api.start, record.api.end) && record.api.is_driver <= 1;
    case SpoolType::kSync:
      return ends_after(record.sync.start, record.sync.end) &&
             record.sync.kind <= static_cast<uint8_t>(SyncKind::kContext);
    case SpoolType::kEventRecord:
      return record.event.time >= 0 && possible(record.event.time);
    case SpoolType::kOverhead:
      return ends_after(record.overhead.start, record.overhead.end);
    case SpoolType::kMemory:
      return record.memory.time > 0 && possible(record.memory.time);
    case SpoolType::kAnnotation:
      return ends_after(record.annotation.start, record.annotation.end);
    default:
      return false;
  }
}

bool valid(const SpoolRecord& record) {
  switch (record.type) {
    case SpoolType::kText:
    case SpoolType::kUnit:
    case SpoolType::kGroup:
    case SpoolType::kMetadata:
    case SpoolType::kEnd:
      return true;
    case SpoolType::kStepBegin:
    case SpoolType::kStepEnd:
      return possible(record.step.time);
    case SpoolType::kHook:
      return valid_hook(record.hook);
    case SpoolType::kAction:
      return valid_action(record.action);
    case SpoolType::kRange:
      return record.range.range < kRangeCount && possible(record.range.start, record.range.end) &&
             valid_unit(record.range.unit);
    case SpoolType::kCollective:
      return record.a < kCollectiveCount && record.b < kDTypeCount &&
             possible(record.collective.start, record.collective.end) &&
             possible(record.collective.issued, record.collective.start) &&
             valid_unit(record.collective.unit);
    case SpoolType::kOperator:
      return valid_operator(record);
    case SpoolType::kOperators:
      return valid_operators(record);
    case SpoolType::kCollectiveCall:
      return record.a < kCollectiveCount && record.b < kDTypeCount &&
             ends_after(record.collective.start, record.collective.end) &&
             valid_unit(record.collective.unit);
    case SpoolType::kInvalid:
      return false;
    default:
      return valid_device_record(record);
  }
}

SpoolHeader parse_header(std::string_view bytes, const std::string& source) {
  SpoolHeader header;
  if (bytes.size() < sizeof(header)) {
    throw InputError(source, fmt::format("the file has {} bytes, but the header of a spool has {}",
                                         bytes.size(), sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kSpoolMagic, sizeof(kSpoolMagic)) != 0) {
    throw InputError(source, "not a spool: it does not begin with SHLSPOOL");
  }
  if (header.version < kOldestSpoolVersion || header.version > kSpoolVersion ||
      header.record_bytes != kSpoolRecordBytes) {
    throw InputError(source, fmt::format("spool of version {} with records of {} bytes; this build "
                                         "reads versions {} to {} with {}",
                                         header.version, header.record_bytes, kOldestSpoolVersion,
                                         kSpoolVersion, kSpoolRecordBytes));
  }
  if (header.check != spool_check(header) || header.world_size < 1 || header.rank < 0 ||
      header.rank >= header.world_size || header.created < 0 || !possible(header.created)) {
    throw InputError(source, "the spool's header is damaged");
  }
  return header;
}

std::vector<uint32_t> units_of(const SpoolRecord& record) {
  switch (record.type) {
    case SpoolType::kHook:
      return {record.hook.unit};
    case SpoolType::kAction:
      return {record.action.unit, record.action.buffer_unit};
    case SpoolType::kRange:
      return {record.range.unit};
    case SpoolType::kCollective:
    case SpoolType::kCollectiveCall:
      return {record.collective.unit};
    default:
      return {};
  }
}

void name_units(Spool& spool, const std::map<uint32_t, std::string>& names) {
  size_t count = names.empty() ? 0 : size_t{names.rbegin()->first} + 1;
  for (const SpoolRecord& record : spool.records) {
    for (const uint32_t unit : units_of(record)) {
      count = unit == kNoUnit ? count : std::max(count, size_t{unit} + 1);
    }
  }
  spool.units.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto found = names.find(static_cast<uint32_t>(i));
    spool.units[i] = found != names.end() ? found->second : fmt::format("unit {}", i);
  }
}

// Before version 4, an action had one of four codes instead of a group.
void give_groups(SpoolAction& action) {
  action.group = action.group == 0 ? mesh::kNoGroup : static_cast<uint8_t>(action.group - 1);
}
constexpr std::array<std::string_view, 3> kGroupsBefore4{"shard", "replicate", "sub_shard"};

void name_groups(Spool& spool, const std::map<uint32_t, std::string>& names) {
  const bool old = spool.header.version < 4;
  if (old) {
    spool.groups.assign(kGroupsBefore4.begin(), kGroupsBefore4.end());
  }
  size_t count = names.empty() ? spool.groups.size() : size_t{names.rbegin()->first} + 1;
  for (const SpoolRecord& record : spool.records) {
    if (record.type == SpoolType::kAction && record.action.group != mesh::kNoGroup) {
      count = std::max(count, size_t{record.action.group} + 1);
    }
  }
  spool.groups.resize(count);
  for (size_t i = old ? kGroupsBefore4.size() : 0; i < spool.groups.size(); ++i) {
    const auto found = names.find(static_cast<uint32_t>(i));
    spool.groups[i] = found != names.end() ? found->second : fmt::format("group {}", i);
  }
}

// The id of the text that a record refers to, if any.
std::optional<uint32_t> text_of(const SpoolRecord& record) {
  switch (record.type) {
    case SpoolType::kOperator:
      return record.op.name;
    case SpoolType::kCollective:
    case SpoolType::kCollectiveCall:
      return record.collective.group;
    case SpoolType::kKernel:
      return record.kernel.name;
    case SpoolType::kCopy:
      return record.copy.name;
    case SpoolType::kApiCall:
      return record.api.name;
    case SpoolType::kOverhead:
      return record.overhead.name;
    case SpoolType::kAnnotation:
      return record.annotation.name;
    default:
      return std::nullopt;
  }
}

// Drops records whose text is missing. This is done last, because a text may come after its first
// use in a file to which several threads append.
void drop_unnamed(Spool& spool) {
  const auto unnamed = [&spool](const SpoolRecord& record) {
    const std::optional<uint32_t> text = text_of(record);
    return text && !spool.texts.contains(*text);
  };
  spool.damaged += static_cast<int64_t>(std::erase_if(spool.records, unnamed));
}

// Reads a spool's bytes in pieces of whole records; only the last piece may end within a record.
class Parser {
 public:
  // `begin` starts with the header.
  Parser(std::string_view begin, const std::string& source) {
    spool_.source = source;
    spool_.header = parse_header(begin, source);
  }

  void take(std::string_view bytes) {
    const size_t whole = bytes.size() / kSpoolRecordBytes;
    spool_.truncated = static_cast<Bytes>(bytes.size() % kSpoolRecordBytes);
    for (size_t i = 0; i < whole; ++i) {
      SpoolRecord record;
      std::memcpy(&record, bytes.data() + i * kSpoolRecordBytes, kSpoolRecordBytes);
      if (record.check != spool_check(record) || !valid(record) || !keep(record)) {
        ++spool_.damaged;
      }
    }
  }

  Spool finish() {
    for (const auto& [id, text] : texts_.texts()) {
      spool_.texts.emplace(id, text);
    }
    if (!metadata_.texts().empty()) {
      spool_.metadata = metadata_.texts().begin()->second;
    }
    spool_.devices = devices_.texts();
    for (const auto& [id, text] : notes_.texts()) {
      spool_.notes.push_back(text);
    }
    drop_unnamed(spool_);
    name_units(spool_, units_.texts());
    name_groups(spool_, groups_.texts());
    return std::move(spool_);
  }

 private:
  // False if the record contradicts earlier records.
  bool keep(const SpoolRecord& record) {
    switch (record.type) {
      case SpoolType::kText:
        return texts_.add(record.text);
      case SpoolType::kUnit:
        return record.text.id < kMaxUnits && units_.add(record.text);
      case SpoolType::kGroup:
        return record.text.id < mesh::kNoGroup && groups_.add(record.text);
      case SpoolType::kMetadata:
        return metadata_.add(record.text);
      case SpoolType::kDeviceProperties:
        return devices_.add(record.text);
      case SpoolType::kNote:
        return notes_.add(record.text);
      case SpoolType::kDeviceDropped:
        spool_.device_dropped = std::max(spool_.device_dropped, record.step.dropped);
        return true;
      case SpoolType::kStepEnd:
        spool_.dropped = record.step.dropped;
        break;
      case SpoolType::kEnd:
        spool_.dropped = record.step.dropped;
        spool_.ended = true;
        return true;
      case SpoolType::kOperators:
        keep_operators(record.operators, record.a);
        return true;
      default:
        break;
    }
    spool_.records.push_back(record);
    if (record.type == SpoolType::kAction && spool_.header.version < 4) {
      give_groups(spool_.records.back().action);
    }
    return true;
  }

  void keep_operators(const SpoolOperators& all, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      SpoolRecord record;
      record.type = SpoolType::kOperator;
      record.op.name = all.name[i];
      record.op.thread = all.thread;
      record.op.start = all.start + all.after[i];
      record.op.end = record.op.start + all.duration[i];
      spool_.records.push_back(record);
    }
  }

  Spool spool_;
  TextAssembler texts_, units_, groups_, metadata_, devices_, notes_;
};

}  // namespace

uint32_t spool_check(const SpoolRecord& record) {
  return check_of(record);
}
uint32_t spool_check(const SpoolHeader& header) {
  return check_of(header);
}

Spool parse_spool(std::string_view bytes, const std::string& source) {
  Parser parser(bytes, source);
  parser.take(bytes.substr(sizeof(SpoolHeader)));
  return parser.finish();
}

// Reads in blocks, so that a large spool is not in memory twice.
Spool read_spool(const std::filesystem::path& path) {
  InputFile file(path, {.most_bytes = kLargestSpool});
  std::string block(kBlockRecords * kSpoolRecordBytes, '\0');
  const auto next = [&](size_t size) {
    size_t have = 0;
    for (size_t got = 1; got != 0 && have < size; have += got) {
      got = file.read(block.data() + have, size - have);
    }
    return std::string_view(block).substr(0, have);
  };
  Parser parser(next(sizeof(SpoolHeader)), path.string());
  for (std::string_view bytes = next(block.size()); !bytes.empty(); bytes = next(block.size())) {
    parser.take(bytes);
  }
  return parser.finish();
}

}  // namespace shardlens::trace
