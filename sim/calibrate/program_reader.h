#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "sim/calibrate/observation.h"
#include "sim/calibrate/recorded_communication.h"
#include "sim/calibrate/step_reader.h"

namespace shardlens::sim {

// Reads the steps of one rank's trace of PyTorch's FSDP as items of the planned step.
//
// [Note: Whose time, in PyTorch] Operators inside FSDP's ranges are the copies of the action that
// the range is about: before the all-gather's call, copy-in; in the copy-out's range, copy-out;
// before or within the reduction's call, the reduction's copy-in (Gloo packs its input there);
// after it, the stored gradient. The rest of an all-gather's or a reduction's range is that
// action's own time, and the rest of a hook's range the hook's. Time between the ranges belongs to
// the next operator of the model.
//
// Ownership  the arguments must outlive the reader.
class ProgramReader {
 public:
  ProgramReader(const trace::Trace& trace,
                const analysis::Timeline& timeline,
                const Observation& about,
                const UnitNames& units);

  static constexpr std::string_view kNoBackward = "no backward ran in them";
  // Why the step is not like the planned one; "": it is.
  [[nodiscard]] std::string difference(const analysis::Step& step) const;
  // A step without a difference.
  [[nodiscard]] ObservedStep read(const analysis::Step& step) const;

 private:
  using Action = std::pair<schedule::Op, UnitId>;
  // An interval of the host's time that belongs to an item, except for those nested in it.
  struct Range {
    Piece piece;
    uint32_t depth = 0;  // of two that overlap the deeper one has the time
  };
  struct Leaf {
    uint32_t event = 0;
    plan::Phase phase = plan::Phase::kForward;
    UnitId unit = 0;
  };
  struct Issued {  // by the host, for a unit of the plan
    Nanoseconds time = 0;
    const analysis::Collective* collective = nullptr;
  };
  using Counts = std::map<Action, size_t>;

  void find_positions();
  void find_leaves();
  void find_issued();
  // Those that start, or were issued, in an interval.
  [[nodiscard]] std::span<const analysis::FsdpEvent> events_in(
      const analysis::Interval& host) const;
  [[nodiscard]] std::span<const Leaf> leaves_in(const analysis::Interval& host) const;
  [[nodiscard]] std::span<const Issued> issued_in(const analysis::Interval& host) const;
  [[nodiscard]] std::optional<UnitId> unit_of(const std::string& name) const;
  [[nodiscard]] std::optional<size_t> position(const Action& action, size_t count) const;
  [[nodiscard]] bool in_fsdp(const trace::Event& event) const;
  [[nodiscard]] std::span<const Nanoseconds> passes_in(const analysis::Interval& host) const;
  [[nodiscard]] size_t pass_at(Nanoseconds instant, const analysis::Interval& host) const;
  [[nodiscard]] bool evaluates_in(const analysis::Interval& host) const;
  [[nodiscard]] bool optimizes_in(const analysis::Interval& host) const;
  [[nodiscard]] bool same_collectives(const analysis::Interval& host) const;
  void add_ranges(const analysis::Interval& host, std::vector<Range>& out) const;
  void add_copies(const analysis::FsdpEvent& event,
                  const Counts& counts,
                  std::vector<Range>& out) const;
  void add_collectives(const analysis::Interval& host, std::vector<Range>& out) const;
  void add_communications(const analysis::Interval& host,
                          std::span<const Nanoseconds> passes,
                          std::vector<Range>& out) const;
  void add_operators(const analysis::Interval& host,
                     std::span<const Nanoseconds> passes,
                     std::vector<Range>& out) const;

  const trace::Trace& trace_;
  const analysis::Timeline& timeline_;
  const Observation& in_;
  const UnitNames& units_;
  TraceIndex index_;
  std::vector<Nanoseconds> passes_;                               // training_passes()
  std::map<Action, std::vector<size_t>> actions_;                 // positions in the order
  std::map<std::pair<Hook, UnitId>, std::vector<size_t>> hooks_;  // the same
  std::vector<std::vector<size_t>> operators_;                    // by operator, then microbatch
  std::map<std::tuple<plan::Phase, UnitId, std::string>, std::vector<uint32_t>> named_;
  std::vector<Leaf> leaves_;    // operators of the model, by start
  std::vector<Issued> issued_;  // by time
  // The program's own collectives: of the trace, by call; positions of the planned ones and of
  // their waits, by communication, then microbatch; indices of those that are alike.
  std::vector<RecordedCommunication> recorded_;
  std::vector<std::vector<std::pair<size_t, size_t>>> communications_;
  std::map<std::tuple<CollectiveKind, plan::Phase, UnitId, Bytes>, std::vector<uint32_t>> alike_;
};

// Which kinds of units' collectives the host waited for where it issued them: nothing is recorded
// on its thread between the call and the end of the collective, for at least nine tenths of the
// time of the kind's collectives. What else the program communicates does not count. Always false
// on a device, where such waits are the stream's. Of a program that gathers itself the calls of
// waits do not count, and its gathers are not blocking: the plan says where they are waited for.
[[nodiscard]] std::array<bool, kCollectiveKindCount> blocking_kinds(
    std::span<const trace::Trace> traces, std::span<const analysis::Timeline> timelines);

}  // namespace shardlens::sim
