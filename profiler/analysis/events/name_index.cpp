#include "profiler/analysis/events/name_index.h"

#include <re2/re2.h>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {

void NameIndex::look_at(trace::StringId id, NameFacts& facts) const {
  const std::string_view name = trace_.strings.view(id);
  facts.known = true;
  if (const auto kernel = communication_kernel(name)) {
    facts.communicates = true;
    facts.kind = kernel->kind;
  }
  facts.matches = communication_ != nullptr && re2::RE2::PartialMatch(name, *communication_);
  facts.is_operator = is_operator(name);
  facts.is_helper = is_helper_operator(name);
  facts.is_c10d_operator = is_c10d_operator(name);
  facts.is_fsdp_operator = name.starts_with("fsdp::");
  facts.is_collective_call = name == "record_param_comms" || is_collective_operator(name);
  facts.is_c10d_annotation = is_c10d_annotation(name);
  const auto range = parse_fsdp_range(name);
  facts.is_fsdp_range = range.has_value();
  facts.is_fsdp_work = range && range->is_own_work();
  facts.is_peer_copy = is_peer_copy(name);
  facts.call_kind =
      facts.is_c10d_annotation || facts.is_collective_call ? parse_collective(name) : std::nullopt;
}

}  // namespace shardlens::analysis
