#pragma once

#include <cstdint>
#include <span>

#include "core/base/units.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

struct RanOperator {  // an operator without shapes, before it is in a record
  uint32_t name, thread;
  Nanoseconds start, end;
};

// A record of one operator, to which shapes can be added.
[[nodiscard]] trace::SpoolRecord operator_record(const RanOperator& op);

// A record of the first operators, as many as it takes (events_in). There must be one.
[[nodiscard]] trace::SpoolRecord pack_first(std::span<const RanOperator> operators);

// How many events a record has.
[[nodiscard]] inline int64_t events_in(const trace::SpoolRecord& record) {
  return record.type == trace::SpoolType::kOperators ? record.a : 1;
}

}  // namespace shardlens::record
