#include "profiler/record/host/packed_operators.h"

#include <algorithm>
#include <limits>

namespace shardlens::record {

using trace::SpoolRecord;
using trace::SpoolType;

SpoolRecord operator_record(const RanOperator& op) {
  SpoolRecord record;
  record.type = SpoolType::kOperator;
  record.op = {.name = op.name,
               .thread = op.thread,
               .start = op.start,
               .end = op.end,
               .ranks = {},
               .dims = {}};
  return record;
}

SpoolRecord pack_first(std::span<const RanOperator> operators) {
  constexpr Nanoseconds kMost = std::numeric_limits<uint32_t>::max();
  const RanOperator& first = operators.front();
  Nanoseconds begin = first.start, last = first.start;
  size_t count = 0;
  for (const RanOperator& op :
       operators.first(std::min(operators.size(), trace::SpoolOperators::kMost))) {
    begin = std::min(begin, op.start);
    last = std::max(last, op.start);
    if (op.name > std::numeric_limits<uint16_t>::max() || op.thread != first.thread ||
        op.end - op.start > kMost || last - begin > kMost) {
      break;
    }
    ++count;
  }
  if (count == 0) {
    return operator_record(first);
  }
  SpoolRecord record;
  record.type = SpoolType::kOperators;
  record.a = static_cast<uint8_t>(count);
  record.operators = {
      .thread = first.thread,
      .reserved = {},
      .start = std::ranges::min(operators.first(count), {}, &RanOperator::start).start,
      .after = {},
      .duration = {},
      .name = {}};
  for (size_t i = 0; i < count; ++i) {
    const RanOperator& op = operators[i];
    record.operators.after[i] = static_cast<uint32_t>(op.start - record.operators.start);
    record.operators.duration[i] = static_cast<uint32_t>(op.end - op.start);
    record.operators.name[i] = static_cast<uint16_t>(op.name);
  }
  return record;
}

}  // namespace shardlens::record
