#include "profiler/analysis/units/unit_figures.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/base/median.h"
#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/figures/group_figures.h"
#include "profiler/analysis/units/unit_work.h"

namespace shardlens::analysis {
namespace {

UnitSpan::Kind span_kind(const std::optional<CollectiveKind>& kind) {
  switch (kind.value_or(CollectiveKind::kBarrier)) {
    case CollectiveKind::kAllGather:
      return UnitSpan::Kind::kAllGather;
    case CollectiveKind::kReduceScatter:
      return UnitSpan::Kind::kReduceScatter;
    case CollectiveKind::kAllReduce:
      return UnitSpan::Kind::kAllReduce;
    default:
      return UnitSpan::Kind::kOther;
  }
}

using schedule::Cause;

// Data of all collectives of one part of a unit, before summing.
struct Gathered {
  PartFigures figures;
  std::vector<Interval> busy;
  std::vector<Nanoseconds> leads;
  std::array<int64_t, schedule::kCauseCount> issued_by{};
};

// Exposed time by cause.
using CauseTimes = std::array<Nanoseconds, kExposedCauseCount>;

ExposedCause most_of(const CauseTimes& times) {
  return static_cast<ExposedCause>(std::max_element(times.begin(), times.end()) - times.begin());
}

class Attribution {
 public:
  Attribution(const trace::Trace& trace,
              const Timeline& timeline,
              const Partition& partition,
              const IntervalSet& window,
              const UnitContext& context)
      : trace_(trace),
        timeline_(timeline),
        partition_(partition),
        window_(window),
        context_(context),
        causes_(trace, timeline, context.frozen_views, context.dependencies) {}

  UnitGathering run() {
    for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
      add(i);
    }
    for (auto& [key, gathered] : parts_) {
      const auto& [owner, part] = key;
      figures_of(owner).parts[static_cast<size_t>(part)] = summed(gathered);
    }
    for (auto& [key, gathered] : others_) {
      figures_of(key.first).others.push_back({key.second, summed(gathered)});
    }
    UnitWork made;
    for (const auto& [key, work] : work_of(made).by_owner) {
      const auto& [section, unit] = key;
      UnitFigures& f = figures_of({unit, unit == kNoUnit ? section : Section::kNone});
      f.compute += work.compute;
      f.exposed_copy += work.exposed_copy;
      if (f.is_unit) {
        (section == Section::kBackward ? f.compute_backward : f.compute_forward) += work.compute;
      }
    }
    UnitGathering gathered;
    std::map<OwnerKey, uint32_t> places;
    const auto put = [&](const OwnerKey& owner, UnitFigures& figures) {
      const bool empty = !figures.is_unit && figures.compute == 0 && figures.exposed_copy == 0 &&
                         std::none_of(figures.parts.begin(), figures.parts.end(),
                                      [](const auto& part) { return part.has_value(); });
      std::stable_sort(figures.others.begin(), figures.others.end(),
                       [](const NamedPart& a, const NamedPart& b) {
                         return a.figures.exposed > b.figures.exposed;
                       });
      if (!empty) {
        places.emplace(owner, static_cast<uint32_t>(gathered.units.size()));
        gathered.units.push_back(std::move(figures));
      }
    };
    constexpr OwnerKey kNone{kNoUnit, Section::kNone};
    for (auto& [owner, figures] : figures_) {
      if (owner != kNone) {
        put(owner, figures);
      }
    }
    if (const auto none = figures_.find(kNone); none != figures_.end()) {
      put(kNone, none->second);  // comes last
    }
    link(places, gathered);
    return gathered;
  }

  std::vector<UnitSpan> collective_spans() {
    std::vector<UnitSpan> out;
    for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
      const Collective& c = timeline_.collectives[i];
      if (!contains(window_, c.when.start)) {
        continue;
      }
      UnitSpan span = span_of(owner_of(c), c.when, c.issued);
      span.kind = span_kind(c.kind);
      span.purpose = c.purpose;
      const bool called_in = c.part == UnitPart::kOther && c.section != Section::kNone;
      span.section = !c.unit || called_in                    ? c.section
                     : c.part == UnitPart::kAllGatherForward ? Section::kForward
                                                             : Section::kBackward;
      span.busy = c.when.length();
      span.needed_at = c.needed_at;
      span.bytes = c.bytes;
      span.issued_by = c.issued_by;
      span.part = c.unit ? c.part : UnitPart::kOther;
      span.name = collective_label(trace_, c);
      span.module = c.module ? timeline_.modules[*c.module] : "";
      span.basis = c.basis;
      span.collective = static_cast<uint32_t>(i);
      const IntervalSet exposed = partition_.exposed(i, window_);
      span.exposed = length_of(exposed);
      if (span.exposed > 0) {
        const bool explained = context_.explained != nullptr && *context_.explained == span.owner;
        const Exposure exposure = causes_.of(i, exposed, explained ? &span.proof : nullptr);
        if (!context_.open_causes) {
          span.cause = settled().of(exposure, explained ? &span.proof : nullptr);
        }
      }
      out.push_back(std::move(span));
    }
    return out;
  }

  std::vector<UnitSpan> spans() {
    std::vector<UnitSpan> out = collective_spans();
    UnitWork made;
    for (const WorkSpan& work : work_of(made).spans) {
      if (!contains(window_, work.when.start)) {
        continue;
      }
      UnitSpan span = span_of(
          {work.owner.unit, work.owner.unit == kNoUnit ? work.owner.section : Section::kNone},
          work.when, work.launched);
      span.kind = work.kind == WorkSpan::Kind::kCompute   ? UnitSpan::Kind::kCompute
                  : work.kind == WorkSpan::Kind::kCopyOut ? UnitSpan::Kind::kCopyOut
                                                          : UnitSpan::Kind::kCopy;
      span.section = work.owner.section;
      span.basis = work.basis;
      span.busy = work.busy;
      span.exposed = work.exposed;
      out.push_back(std::move(span));
    }
    std::stable_sort(out.begin(), out.end(), [](const UnitSpan& a, const UnitSpan& b) {
      return a.when.start < b.when.start;
    });
    return out;
  }

 private:
  // The context's UnitWork, or one computed into `room`.
  [[nodiscard]] const UnitWork& work_of(UnitWork& room) const {
    if (context_.work != nullptr) {
      return *context_.work;
    }
    return room = unit_work(timeline_, partition_, window_);
  }

  // A unit, or kNoUnit with the section of work that belongs to no unit.
  using OwnerKey = std::pair<uint32_t, Section>;

  static OwnerKey owner_of(const Collective& c) {
    const bool own = c.section == Section::kLoss || c.section == Section::kClip ||
                     c.section == Section::kOptimizer || c.section == Section::kAmbiguous;
    return c.unit ? OwnerKey{*c.unit, Section::kNone}
                  : OwnerKey{kNoUnit, own ? c.section : Section::kNone};
  }
  [[nodiscard]] std::string fqn_of(const OwnerKey& owner) const {
    return owner.first != kNoUnit ? timeline_.units[owner.first]
                                  : "<" + std::string(name_of(owner.second)) + ">";
  }
  UnitFigures& figures_of(const OwnerKey& owner) {
    const auto [it, fresh] = figures_.try_emplace(owner);
    if (fresh) {
      it->second.is_unit = owner.first != kNoUnit;
      it->second.fqn = fqn_of(owner);
    }
    return it->second;
  }
  [[nodiscard]] UnitSpan span_of(const OwnerKey& owner,
                                 const Interval& when,
                                 std::optional<Nanoseconds> issued) const {
    UnitSpan span;
    span.owner = fqn_of(owner);
    span.is_unit = owner.first != kNoUnit;
    span.when = when;
    span.issued = issued;
    const size_t step = step_of(timeline_, issued, when.start);
    if (step < timeline_.steps.size()) {
      span.step = timeline_.steps[step].number;
    }
    return span;
  }

  void add(size_t i) {
    const Collective& c = timeline_.collectives[i];
    const Nanoseconds exposed_length = partition_.exposed_length(i, window_);
    const bool starts_here = contains(window_, c.when.start);
    if (!starts_here && exposed_length == 0) {
      return;
    }
    const UnitPart part = c.unit ? c.part : UnitPart::kOther;
    add_to(parts_[{owner_of(c), part}], c, starts_here, exposed_length);
    if (part == UnitPart::kOther) {
      add_to(others_[{owner_of(c), collective_label(trace_, c)}], c, starts_here, exposed_length);
    }
    if (exposed_length > 0) {
      exposures_.push_back(
          {causes_.of(i, partition_.exposed(i, window_)), 0, part, trace::kNoIndex});
    }
  }

  // Sets positions of units and of their other parts in the exposures.
  void link(const std::map<OwnerKey, uint32_t>& places, UnitGathering& gathered) {
    for (UnitExposure& each : exposures_) {
      const Collective& c = timeline_.collectives[each.exposure.collective];
      each.unit = places.at(owner_of(c));
      if (each.part == UnitPart::kOther) {
        const std::vector<NamedPart>& others = gathered.units[each.unit].others;
        const std::string label = collective_label(trace_, c);
        const auto found = std::find_if(others.begin(), others.end(),
                                        [&](const NamedPart& o) { return o.name == label; });
        each.other = static_cast<uint32_t>(found - others.begin());
      }
    }
    gathered.exposures = std::move(exposures_);
  }

  const SettledCauses& settled() {
    if (!settled_) {
      rank_ = rank_collectives(trace_, timeline_);
      settled_.emplace(rank_);
    }
    return *settled_;
  }

  void add_to(Gathered& g,
              const Collective& c,
              bool starts_here,
              Nanoseconds exposed_length) const {
    g.figures.count += starts_here ? 1 : 0;
    g.figures.bytes += starts_here ? c.bytes : 0;
    g.figures.exposed += exposed_length;
    g.busy.push_back(c.when);
    if (const auto lead = lead_of(c)) {
      g.leads.push_back(*lead);
    }
    if (c.issued_by) {
      ++g.issued_by[static_cast<size_t>(*c.issued_by)];
    }
  }

  [[nodiscard]] std::optional<Nanoseconds> lead_of(const Collective& c) const {
    if (c.needed_at) {
      return *c.needed_at - c.when.end;
    }
    if (c.kind != CollectiveKind::kAllGather) {
      return std::nullopt;
    }
    const auto next =
        std::lower_bound(timeline_.compute.begin(), timeline_.compute.end(), c.when.end,
                         [](const Interval& i, Nanoseconds t) { return i.start < t; });
    return next == timeline_.compute.end() ? std::nullopt : std::optional(next->start - c.when.end);
  }

  [[nodiscard]] PartFigures summed(Gathered& g) const {
    PartFigures out = g.figures;
    out.busy = shared_length(union_of(std::move(g.busy)), window_);
    if (!g.leads.empty()) {
      out.lead = lower_median(g.leads);
    }
    const auto usual = std::max_element(g.issued_by.begin(), g.issued_by.end());
    if (*usual > 0) {
      out.issued_by = static_cast<Cause>(usual - g.issued_by.begin());
    }
    return out;
  }

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const Partition& partition_;
  const IntervalSet& window_;
  const UnitContext& context_;
  ExposedCauses causes_;
  std::vector<UnitExposure> exposures_;
  RankCollectives rank_;
  std::optional<SettledCauses> settled_;  // of rank_
  std::map<std::pair<OwnerKey, UnitPart>, Gathered> parts_;
  std::map<std::pair<OwnerKey, std::string>, Gathered> others_;
  std::map<OwnerKey, UnitFigures> figures_;
};

}  // namespace

Nanoseconds UnitFigures::exposed() const {
  Nanoseconds sum = 0;
  for (const auto& part : parts) {
    sum += part ? part->exposed : 0;
  }
  return sum;
}

std::string_view name_of(UnitSpan::Kind kind) {
  constexpr std::string_view kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "other",
                                         "copy_out",   "copy",           "compute"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<UnitSpan> unit_spans(const trace::Trace& trace,
                                 const Timeline& timeline,
                                 const Partition& partition,
                                 const IntervalSet& window,
                                 const UnitContext& context) {
  return Attribution(trace, timeline, partition, window, context).spans();
}

std::vector<UnitSpan> collective_spans(const trace::Trace& trace,
                                       const Timeline& timeline,
                                       const Partition& partition,
                                       const IntervalSet& window,
                                       const UnitContext& context) {
  return Attribution(trace, timeline, partition, window, context).collective_spans();
}

UnitGathering gather_units(const trace::Trace& trace,
                           const Timeline& timeline,
                           const Partition& partition,
                           const IntervalSet& window,
                           const UnitContext& context) {
  return Attribution(trace, timeline, partition, window, context).run();
}

void settle_causes(const std::vector<UnitExposure>& exposures,
                   const SettledCauses& causes,
                   std::vector<UnitFigures>& units) {
  std::map<std::pair<uint32_t, UnitPart>, CauseTimes> parts;
  std::map<std::pair<uint32_t, uint32_t>, CauseTimes> others;
  for (const UnitExposure& each : exposures) {
    const auto cause = static_cast<size_t>(causes.of(each.exposure));
    parts[{each.unit, each.part}][cause] += each.exposure.length;
    if (each.other != trace::kNoIndex) {
      others[{each.unit, each.other}][cause] += each.exposure.length;
    }
  }
  for (const auto& [key, times] : parts) {
    units[key.first].parts[static_cast<size_t>(key.second)]->cause = most_of(times);
  }
  for (const auto& [key, times] : others) {
    units[key.first].others[key.second].figures.cause = most_of(times);
  }
}

void settle_causes(const std::vector<UnitExposure>& exposures,
                   const SettledCauses& causes,
                   std::vector<UnitSpan>& spans) {
  for (UnitSpan& span : spans) {
    const auto found = std::partition_point(
        exposures.begin(), exposures.end(),
        [&](const UnitExposure& each) { return each.exposure.collective < span.collective; });
    if (found != exposures.end() && found->exposure.collective == span.collective) {
      span.cause = causes.of(found->exposure, span.proof.empty() ? nullptr : &span.proof);
    }
  }
}

std::vector<UnitFigures> unit_figures(const trace::Trace& trace,
                                      const Timeline& timeline,
                                      const Partition& partition,
                                      const IntervalSet& window,
                                      const UnitContext& context) {
  UnitGathering out = gather_units(trace, timeline, partition, window, context);
  const RankCollectives rank = rank_collectives(trace, timeline);
  settle_causes(out.exposures, SettledCauses(rank), out.units);
  return std::move(out.units);
}

}  // namespace shardlens::analysis
