// Owners of device events whose annotation names a module.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/trace/model/annotation.h"

namespace shardlens::analysis {
namespace {

using trace::Trace;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The name of the block that contains a module: up to the first number ("model.layers.3"); ""
// without one.
std::string_view block_of(std::string_view module) {
  for (size_t begin = 0; begin <= module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    if (is_number(module.substr(begin, end - begin))) {
      return module.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

// Finds the units of modules.
//
// [Note: Units of modules] A module belongs to the innermost unit around it. The units are those
// that FSDP's ranges name; without any, the modules that annotations of gathers and reductions
// name; without those, blocks with a number, and the root for the rest.
class UnitsOfModules {
 public:
  UnitsOfModules(const Trace& trace,
                 const std::vector<uint32_t>& replay,
                 const std::vector<SeenEvent>& events,
                 Timeline& timeline)
      : trace_(trace), timeline_(timeline) {
    for (uint32_t i = 0; i < timeline.units.size(); ++i) {
      ids_.emplace(timeline.units[i], i);
    }
    const bool named =
        std::ranges::any_of(timeline.units, [](const auto& u) { return !u.empty(); });
    if (named) {
      return;
    }
    for (const uint32_t i : replay) {
      const SeenEvent& seen = events[i];
      const trace::StringId module = module_of(trace, seen);
      const bool shards =
          seen.kind == CollectiveKind::kAllGather || seen.kind == CollectiveKind::kReduceScatter;
      if (shards && seen.nature == Nature::kCommunication && module != trace::kEmptyString) {
        (void)id(name_of(trace.strings.view(module)));
      }
    }
    blocks_ = ids_.empty() || (ids_.size() == 1 && ids_.begin()->first.empty());
  }

  static trace::StringId module_of(const Trace& trace, const SeenEvent& seen) {
    const trace::DeviceArgs* device = trace.device(trace.events[seen.event]);
    return device == nullptr ? trace::kEmptyString : device->module;
  }

  static std::string name_of(std::string_view module) {
    return module == trace::kRootModule ? "" : without_wrappers(module);
  }

  [[nodiscard]] uint32_t of(trace::StringId module) {
    const auto known = known_.find(module);
    if (known != known_.end()) {
      return known->second;
    }
    const uint32_t unit = find(name_of(trace_.strings.view(module)));
    known_.emplace(module, unit);
    return unit;
  }

 private:
  uint32_t find(const std::string& module) {
    if (blocks_) {
      return id(std::string(block_of(module)));
    }
    for (std::string_view name = module;;) {
      if (const auto found = ids_.find(name); found != ids_.end()) {
        return found->second;
      }
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos) {
        return id("");
      }
      name = name.substr(0, dot);
    }
  }

  uint32_t id(const std::string& name) {
    const auto [found, fresh] =
        ids_.try_emplace(name, static_cast<uint32_t>(timeline_.units.size()));
    if (fresh) {
      timeline_.units.push_back(name);
    }
    return found->second;
  }

  const Trace& trace_;
  Timeline& timeline_;
  std::map<std::string, uint32_t, std::less<>> ids_;
  std::unordered_map<trace::StringId, uint32_t> known_;
  bool blocks_ = false;
};

// Finds forward and backward of annotated work that does not say which it is.
//
// [Note: Turns] A forward runs the units in their order and a backward in the reverse order. So
// forward turns to backward within the work of the unit after which the order falls, and backward
// to the next forward within that after which it rises. Within such a unit's work, the turn is
// where most other work lies in between: the head and the loss, or the embedding.
class Turns {
 public:
  // `work`: positions in `events` of kernels and copies of a replay, by start.
  Turns(const std::vector<uint32_t>& work, std::vector<SeenEvent>& events, const Timeline& timeline)
      : work_(work), events_(events) {
    for (uint32_t i = 0; i < timeline.units.size(); ++i) {
      if (timeline.units[i].empty()) {
        root_ = i;
      }
    }
  }

  void set_sections() {
    find_visits();
    if (visits_.empty()) {
      return;
    }
    bool backward = false;
    size_t from = 0;
    for (size_t v = 0; v < visits_.size(); ++v) {
      const bool last = v + 1 == visits_.size();
      const bool turns = last ? !backward : rises(v) == backward;
      if (!turns) {
        continue;
      }
      const Gap gap = widest_gap(visits_[v]);
      if (last && gap.length == 0) {
        break;  // only a forward was named
      }
      from = turn(from, gap, backward);
      backward = !backward;
    }
    set(from, work_.size(), backward);
  }

 private:
  struct Visit {  // consecutive work of one unit, not counting the root's
    uint32_t unit = 0;
    size_t order = 0;               // of the unit, by its first visit
    std::vector<size_t> positions;  // in work_
  };
  struct Gap {  // positions in work_ from `begin` to before `end` are of no unit or of the root
    size_t begin = 0, end = 0, length = 0;
  };

  [[nodiscard]] bool named(size_t at) const {
    return events_[work_[at]].basis == Basis::kAnnotation;
  }

  void find_visits() {
    std::map<uint32_t, size_t> orders;
    for (size_t i = 0; i < work_.size(); ++i) {
      const uint32_t unit = events_[work_[i]].owner.unit;
      // A prefetch copies parameters of units whose turn comes later.
      if (!named(i) || unit == root_ || events_[work_[i]].nature == Nature::kCopy) {
        continue;
      }
      if (visits_.empty() || visits_.back().unit != unit) {
        visits_.push_back({unit, orders.try_emplace(unit, orders.size()).first->second, {}});
      }
      visits_.back().positions.push_back(i);
    }
  }

  [[nodiscard]] bool rises(size_t visit) const {
    return visits_[visit + 1].order > visits_[visit].order;
  }

  [[nodiscard]] static Gap widest_gap(const Visit& visit) {
    Gap best{visit.positions.back() + 1, visit.positions.back() + 1, 0};
    for (size_t i = 0; i + 1 < visit.positions.size(); ++i) {
      const size_t begin = visit.positions[i] + 1, end = visit.positions[i + 1];
      if (end - begin > best.length) {
        best = {begin, end, end - begin};
      }
    }
    return best;
  }

  // Sets the sections up to the end of the gap, in which the root's work before work of no module
  // is still that of the pass before; returns where the next pass begins.
  size_t turn(size_t from, const Gap& gap, bool backward) {
    size_t head = gap.begin;
    while (head < gap.end && named(head)) {
      ++head;
    }
    size_t rest = gap.end;
    while (rest > head && named(rest - 1)) {
      --rest;
    }
    set(from, head, backward);
    if (!backward) {
      for (size_t i = head; i < rest; ++i) {
        if (!named(i)) {
          SeenEvent& seen = events_[work_[i]];
          if (seen.basis == Basis::kNone || seen.basis == Basis::kAmbiguous) {
            seen.owner = {Section::kLoss, kNoUnit};
            seen.basis = Basis::kOrder;
          }
        }
      }
    }
    return rest;
  }

  void set(size_t from, size_t to, bool backward) {
    for (size_t i = from; i < to; ++i) {
      SeenEvent& seen = events_[work_[i]];
      if (named(i) && seen.owner.section == Section::kNone) {
        seen.owner.section = backward ? Section::kBackward : Section::kForward;
      }
    }
  }

  const std::vector<uint32_t>& work_;
  std::vector<SeenEvent>& events_;
  std::optional<uint32_t> root_;
  std::vector<Visit> visits_;
};

bool is_open(const SeenEvent& seen) {
  return seen.basis == Basis::kNone || seen.basis == Basis::kAmbiguous;
}

// Work between two pieces of one owner is of this owner, and between forward and backward it is the
// loss; what is left is ambiguous.
void fill_between(const std::vector<uint32_t>& work, std::vector<SeenEvent>& events) {
  std::optional<Owner> before;
  for (size_t i = 0; i < work.size(); ++i) {
    if (!is_open(events[work[i]])) {
      before = events[work[i]].owner;
      continue;
    }
    size_t after = i;
    while (after < work.size() && is_open(events[work[after]])) {
      ++after;
    }
    Owner owner{Section::kAmbiguous, kNoUnit};
    if (before && after < work.size()) {
      const Owner& next = events[work[after]].owner;
      if (next == *before) {
        owner = next;
      } else if (before->section == Section::kForward && next.section == Section::kBackward) {
        owner.section = Section::kLoss;
      }
    }
    for (; i < after; ++i) {
      events[work[i]].owner = owner;
      events[work[i]].basis =
          owner.section == Section::kAmbiguous ? Basis::kAmbiguous : Basis::kOrder;
    }
    --i;
  }
}

}  // namespace

void attribute_annotated(const Trace& trace,
                         const std::vector<uint32_t>& replay,
                         std::vector<SeenEvent>& events,
                         Timeline& timeline) {
  std::optional<UnitsOfModules> units;
  std::vector<uint32_t> work;
  bool says_backward = false;
  for (const uint32_t i : replay) {
    SeenEvent& seen = events[i];
    if (seen.nature != Nature::kCommunication) {
      work.push_back(i);
    }
    const trace::StringId module = UnitsOfModules::module_of(trace, seen);
    if (module == trace::kEmptyString) {
      continue;
    }
    if (!units) {
      units.emplace(trace, replay, events, timeline);
    }
    const bool backward = trace.device(trace.events[seen.event])->backward;
    says_backward = says_backward || backward;
    Owner owner{backward ? Section::kBackward : Section::kNone, units->of(module)};
    if (seen.basis == Basis::kOrder &&
        (seen.owner.section == Section::kForward || seen.owner.section == Section::kBackward)) {
      owner.section = backward ? Section::kBackward : seen.owner.section;
    }
    if (owner.unit != seen.owner.unit) {
      seen.planned = nullptr;
    }
    seen.owner = owner;
    seen.basis = Basis::kAnnotation;
  }
  if (!units) {
    return;
  }
  if (says_backward) {
    for (const uint32_t i : work) {
      if (events[i].basis == Basis::kAnnotation && events[i].owner.section == Section::kNone) {
        events[i].owner.section = Section::kForward;
      }
    }
  } else {
    Turns(work, events, timeline).set_sections();
  }
  fill_between(work, events);
}

}  // namespace shardlens::analysis
