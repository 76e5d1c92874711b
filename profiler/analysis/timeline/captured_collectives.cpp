// Purposes, sizes and needs of collectives that ran in CUDA graphs.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/analysis/timeline/sharding_parts.h"
#include "profiler/trace/model/annotation.h"

namespace shardlens::analysis {
namespace {

class CapturedCollectives {
 public:
  CapturedCollectives(const Sources& sources, Timeline& timeline)
      : sources_(sources), timeline_(timeline) {
    for (uint32_t i = 0; i < timeline.collectives.size(); ++i) {
      of_event_.emplace(timeline.collectives[i].event, i);
    }
    Nanoseconds done = timeline.span.empty() ? 0 : timeline.span.front().start;
    for (const DeviceEvent& each : timeline.device_events) {
      if (each.nature != Nature::kCommunication) {
        const Owner& owner = timeline.place(each).owner;
        if (owner.unit != kNoUnit) {
          work_[owner.unit].push_back({each.when.start, done, owner.section});
        }
        done = std::max(done, each.when.end);
      }
    }
  }

  void describe(Collective& c) const {
    const Collective* like = repeated(c);
    if (like != nullptr) {
      take_over(*like, c);
    } else if (c.unit && c.purpose != Purpose::kOther) {
      c.section = Section::kNone;  // of the plan
    } else if (c.unit && is_within_unit(c)) {
      set_purpose(c, Purpose::kOther, false);
      if (c.section == Section::kNone) {
        c.section = section_before(c);
      }
    } else if (c.unit) {
      set_purpose(c, sharding_purpose(c.kind), gathered_in_backward(c));
      c.section = Section::kNone;
    }
    if (c.unit && c.purpose == Purpose::kGatherParameters) {
      if (const Work* first = first_after(c)) {
        c.needed_at = first->ready;
      }
    }
  }

 private:
  struct Work {  // a kernel or copy of a unit
    Nanoseconds start = 0;
    Nanoseconds ready = 0;  // when all work that started before it was done
    Section section = Section::kNone;
  };

  [[nodiscard]] const Collective* repeated(const Collective& c) const {
    const auto found = std::partition_point(timeline_.repeats.begin(), timeline_.repeats.end(),
                                            [&](const auto& pair) { return pair.first < c.event; });
    if (found == timeline_.repeats.end() || found->first != c.event) {
      return nullptr;
    }
    const auto like = of_event_.find(found->second);
    return like == of_event_.end() ? nullptr : &timeline_.collectives[like->second];
  }

  // Whether the annotation names a module inside the unit: its own communication, as of tensor
  // parallelism. FSDP communicates for the unit itself.
  [[nodiscard]] bool is_within_unit(const Collective& c) const {
    const trace::DeviceArgs* device = sources_.trace.device(sources_.trace.events[c.event]);
    if (c.basis != Basis::kAnnotation || device == nullptr) {
      return false;
    }
    const std::string_view module = sources_.trace.strings.view(device->module);
    return module != trace::kRootModule && without_wrappers(module) != timeline_.units[*c.unit];
  }

  // The section of the last work of its unit that began before.
  [[nodiscard]] Section section_before(const Collective& c) const {
    const auto found = work_.find(*c.unit);
    if (found == work_.end()) {
      return Section::kNone;
    }
    const auto after =
        std::partition_point(found->second.begin(), found->second.end(),
                             [&](const Work& each) { return each.start < c.when.start; });
    return after == found->second.begin() ? Section::kNone : std::prev(after)->section;
  }

  void take_over(const Collective& like, Collective& c) const {
    c.kind = like.kind;
    c.purpose = like.purpose;
    c.part = like.part;
    c.unit = like.unit;
    c.section = like.section;
    c.bytes = c.bytes == 0 ? like.bytes : c.bytes;
    c.ranks = c.ranks == 0 ? like.ranks : c.ranks;
    c.issued_by = like.issued_by;
    if (c.args == trace::kNoIndex && c.listed_group == trace::kNoIndex) {
      c.listed_group = like.listed_group;
      if (like.args != trace::kNoIndex) {
        const trace::StringId group = sources_.trace.collectives[like.args].group;
        c.listed_group = sources_.sizes.listed(sources_.trace.strings.view(group));
      }
    }
  }

  // The first work of its unit that did not begin before the collective ended.
  [[nodiscard]] const Work* first_after(const Collective& c) const {
    const auto found = work_.find(*c.unit);
    if (found == work_.end()) {
      return nullptr;
    }
    const auto after =
        std::partition_point(found->second.begin(), found->second.end(),
                             [&](const Work& each) { return each.start < c.when.end; });
    return after == found->second.end() ? nullptr : &*after;
  }

  // An annotation may say so; otherwise what the parameters were used for first.
  [[nodiscard]] bool gathered_in_backward(const Collective& c) const {
    if (c.section == Section::kForward || c.section == Section::kBackward) {
      return c.section == Section::kBackward;
    }
    const Work* first = first_after(c);
    return first != nullptr && first->section == Section::kBackward;
  }

  const Sources& sources_;
  Timeline& timeline_;
  std::unordered_map<uint32_t, uint32_t> of_event_;       // event: position in collectives
  std::unordered_map<uint32_t, std::vector<Work>> work_;  // by unit, by start
};

}  // namespace

void attribute_captured_collectives(const Sources& sources, Timeline& timeline) {
  const CapturedCollectives captured(sources, timeline);
  for (Collective& c : timeline.collectives) {
    if (c.basis != Basis::kNone) {
      captured.describe(c);
    }
  }
}

}  // namespace shardlens::analysis
