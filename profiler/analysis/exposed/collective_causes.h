#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/exposed/one_queue.h"
#include "profiler/analysis/figures/rank_collectives.h"
#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Why a collective was exposed; docs/reference/metrics.md explains how each cause is determined.
enum class ExposedCause : uint8_t {
  kFirst,
  kLast,
  kNoPrefetch,
  kLateHost,
  kQueued,
  kLimiter,
  kBandwidth,
  kFrozenViews,
  kHostIsCompute,
  kPeer,
  kDependency,
  kUnknown,
  kOneQueue,  // the last: summaries have the numbers
};
inline constexpr int kExposedCauseCount = 13;
// The cause in words, for people: "behind another collective".
[[nodiscard]] std::string_view words_of(ExposedCause cause);
// The same words as one, for programs: "behind_another_collective".
[[nodiscard]] std::string_view name_of(ExposedCause cause);
// Explains the cause, for display.
[[nodiscard]] std::string_view explanation_of(ExposedCause cause);
// What helps against the cause of such a collective, for display; "": nothing, or it depends.
[[nodiscard]] std::string_view remedy_of(ExposedCause cause, UnitPart part);

// One fact from which a cause was concluded.
struct CauseProof {
  std::string_view what;             // "issued", "behind", …, for display
  uint32_t event = trace::kNoIndex;  // index into Trace::events; kNoIndex: not an event
  std::string name;                  // of the event
  Interval when;                     // on the rank's clock; empty: an instant
};

// The cause of an exposed collective as far as the trace of its own rank shows it.
struct OwnCause {
  ExposedCause cause = ExposedCause::kUnknown;
  bool certain = false;  // whatever other ranks did
  bool rated = false;    // kBandwidth instead, if the transfer had the best rate of its size
};

// An exposed collective.
struct Exposure {
  uint32_t collective = 0;  // index into Timeline::collectives
  Nanoseconds length = 0;
  Nanoseconds half = 0;  // the first instant at which half of the exposed time was over
  OwnCause own;
};

// Finds what a rank's trace shows of the cause of each exposed collective. Where the trace is not
// enough, SettledCauses decides.
//
// Ownership  refers to what it is given.
// Threads    one at a time, although of() is const: searches begin where the last one ended, which
//            is fast if the collectives are asked for in their order.
class ExposedCauses {
 public:
  // `frozen_views`: nullptr where none were found. `dependencies`: nullptr, or those of the
  // timeline, which are otherwise found again.
  ExposedCauses(const trace::Trace& trace,
                const Timeline& timeline,
                const FrozenViews* frozen_views,
                const Dependencies* dependencies = nullptr);
  // The causes of Timeline::collectives[i], exposed in `exposed`, which is not empty. `proof`: if
  // not nullptr, the facts are added to it.
  [[nodiscard]] Exposure of(size_t i,
                            const IntervalSet& exposed,
                            std::vector<CauseProof>* proof = nullptr) const;

 private:
  // What delayed a collective's start.
  struct Start {
    Nanoseconds ready = 0;             // issued, and what it depends on was done
    std::optional<uint32_t> producer;  // position in device_events that it waited for
    std::optional<uint32_t> behind;    // collective of its communicator that it waited for
    Nanoseconds queued = 0;            // compute that could have hidden it, but for `behind`
  };
  void find_ends_of_steps();
  void find_communicators();
  void find_launches();
  [[nodiscard]] bool is_unshard(const Collective& c) const;
  [[nodiscard]] bool is_reduction(const Collective& c) const;
  [[nodiscard]] std::optional<uint32_t> blocker_of_stream(size_t i, const Start& start) const;
  [[nodiscard]] Start start_of(size_t i) const;
  [[nodiscard]] std::optional<uint32_t> producer_of(size_t i) const;
  [[nodiscard]] bool host_waited_in_call(const Collective& c) const;
  // Whether nothing hid it because the device ran all streams as one queue.
  [[nodiscard]] bool held_in_queue(size_t i,
                                   Nanoseconds length,
                                   std::vector<CauseProof>* proof) const;
  // Positions of compute in device_events. Made when first needed.
  [[nodiscard]] const std::vector<uint32_t>& computes() const;
  // Whether for half of the exposed time, the compute that came next was not yet launched.
  [[nodiscard]] bool host_was_late(const IntervalSet& exposed,
                                   Nanoseconds length,
                                   std::vector<CauseProof>* proof) const;
  [[nodiscard]] OwnCause own_cause(size_t i,
                                   const IntervalSet& exposed,
                                   Nanoseconds length,
                                   std::vector<CauseProof>* proof) const;
  [[nodiscard]] OwnCause device_cause(size_t i,
                                      const Start& start,
                                      const IntervalSet& exposed,
                                      Nanoseconds length,
                                      std::vector<CauseProof>* proof) const;
  [[nodiscard]] OwnCause host_cause(size_t i) const;

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const FrozenViews* frozen_views_;
  const Dependencies* dependencies_;
  std::unique_ptr<Dependencies> own_dependencies_;
  std::vector<uint32_t> communicator_;  // by collective
  std::vector<uint32_t> before_;        // by collective: the one before; kNoIndex: none
  std::vector<bool> first_, last_;   // by collective: whether it is the first or last of its step
  std::vector<uint32_t> device_of_;  // by collective: position in device_events
  std::optional<OneQueue> queue_;    // device traces
  mutable std::optional<std::vector<uint32_t>> computes_;
  // By host thread: positions in device_events of compute and copies, by launch. Only of a trace
  // without cuda_sync events.
  std::vector<std::vector<uint32_t>> launches_;
  mutable NearSet compute_;
  mutable size_t near_launch_ = 0, near_compute_ = 0;  // positions in lists of launches_, computes_
};

// Completes the causes of a rank's exposed collectives by what was matched across ranks.
//
// Ownership  refers to what it is given.
class SettledCauses {
 public:
  explicit SettledCauses(const RankCollectives& rank);
  // `proof`: if not nullptr, what ExposedCauses::of() found; it is completed.
  [[nodiscard]] ExposedCause of(const Exposure& exposure,
                                std::vector<CauseProof>* proof = nullptr) const;

 private:
  // Collectives that should take equally long: kind, group, size (or unit and part).
  using Alike = std::tuple<int, uint32_t, Bytes, uint32_t, int>;
  struct Best {
    Nanoseconds shortest = 0;
    uint32_t collective = 0;
    int64_t count = 0;
  };
  [[nodiscard]] static Alike alike(const RankCollective& c);
  // Whether the collective ran at its size's best rate, so that its length explains its exposed
  // time.
  [[nodiscard]] bool at_best_rate(const Exposure& exposure, std::vector<CauseProof>* proof) const;

  const RankCollectives& rank_;
  std::map<Alike, Best> best_;
};

// Index of the step that contains `instant`; steps.size() if none does.
[[nodiscard]] size_t step_of(const std::vector<Step>& steps, Nanoseconds instant);
// Index of the step in which the host issued what started at `start`; if the issue is not known, of
// the step that contains `start`.
[[nodiscard]] size_t step_of(const Timeline& timeline,
                             const std::optional<Nanoseconds>& issued,
                             Nanoseconds start);

}  // namespace shardlens::analysis
