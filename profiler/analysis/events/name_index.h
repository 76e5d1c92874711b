#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/collective.h"
#include "profiler/trace/model/trace.h"

namespace re2 {
class RE2;
}

namespace shardlens::analysis {

// The meaning of a name without its event; see names.h.
struct NameFacts {
  bool known = false;  // the other fields are set
  bool communicates = false;
  bool matches = false;  // --comm-regex
  bool is_operator = false;
  bool is_helper = false;
  bool is_c10d_operator = false;
  bool is_fsdp_operator = false;  // fsdp::…
  bool is_c10d_annotation = false;
  bool is_collective_call = false;  // record_param_comms, is_collective_operator()
  bool is_fsdp_range = false;
  bool is_fsdp_work = false;  // an FSDP range that contains only FSDP's own work
  bool is_peer_copy = false;
  std::optional<CollectiveKind> call_kind;  // of a c10d annotation or a call of a collective
  std::optional<CollectiveKind> kind;       // kind of a communication kernel
};

// A test of names that is made once for each distinct name of a trace.
template <class Test>
class OncePerName {
 public:
  OncePerName(const trace::Trace& trace, Test test)
      : trace_(trace), test_(std::move(test)), known_(trace.strings.size(), Known::kNothing) {}

  [[nodiscard]] bool operator()(const trace::Event& event) {
    Known& known = known_[event.name];
    if (known == Known::kNothing) {
      known = test_(trace_.name(event)) ? Known::kYes : Known::kNo;
    }
    return known == Known::kYes;
  }

 private:
  enum class Known : uint8_t { kNothing, kNo, kYes };
  const trace::Trace& trace_;
  Test test_;
  std::vector<Known> known_;  // by StringId
};

// The facts for each name of one trace. Each distinct name is examined once, at its first use.
//
// Threads  one at a time, although of() is const: it fills a cache.
class NameIndex {
 public:
  // `communication` may be null.
  NameIndex(const trace::Trace& trace, const re2::RE2* communication)
      : trace_(trace), communication_(communication), facts_(trace.strings.size()) {}

  [[nodiscard]] const NameFacts& of(const trace::Event& event) const {
    NameFacts& facts = facts_[event.name];
    if (!facts.known) {
      look_at(event.name, facts);
    }
    return facts;
  }

 private:
  void look_at(trace::StringId id, NameFacts& facts) const;

  const trace::Trace& trace_;
  const re2::RE2* communication_;
  mutable std::vector<NameFacts> facts_;  // by StringId
};

}  // namespace shardlens::analysis
