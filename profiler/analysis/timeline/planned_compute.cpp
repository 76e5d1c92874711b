// Owners of compute of CUDA graphs, by the copies of parameters and gradients around it.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

#include "profiler/analysis/timeline/captured_work.h"

namespace shardlens::analysis {
namespace {

// Finds the owners of the compute between two copies.
//
// [Note: Between copies] FSDP2 copies on the compute stream: a unit's parameters out of an
// all-gather right before the unit runs, and its gradients into a reduce-scatter right after its
// backward. So the plan says whose compute is between two copies. Where it is that of several,
// blocks alike help: kernels at the beginning that are those of a whole block elsewhere are the
// first owner's, and at the end the last one's. The rest is ambiguous, unless one owner is left.
class PlannedCompute {
 public:
  PlannedCompute(const Sources& sources,
                 const PlannedPass& pass,
                 const std::vector<uint32_t>& replay,
                 std::vector<SeenEvent>& events,
                 Timeline& timeline)
      : sources_(sources), pass_(pass), events_(events), timeline_(timeline) {
    for (const uint32_t i : replay) {
      const bool gathers = is_named(i, "split_with_sizes_copy_out");
      if (gathers || is_named(i, "chunk_cat_cuda_kernel")) {
        copies_.push_back(i);
        fits_ = fits_ && copies_.size() <= pass.copies.size() &&
                pass.copies[copies_.size() - 1].gathers == gathers;
        between_.emplace_back();
      } else if (events[i].nature == Nature::kCompute && events[i].basis == Basis::kNone) {
        between_.back().push_back(i);
      }
    }
    fits_ = fits_ && copies_.size() == pass.copies.size();
  }

  void attribute() {
    if (!fits_) {
      return;
    }
    for (size_t i = 0; i < between_.size(); ++i) {
      const std::vector<PlannedOwner>& owners = owners_of(i);
      if (owners.size() == 1 && !owners.front().unit.empty()) {
        blocks_[owners.front().section] = names(between_[i].begin(), between_[i].end());
      }
    }
    for (size_t i = 0; i < copies_.size(); ++i) {
      give(copies_[i], pass_.copies[i].owner);
    }
    for (size_t i = 0; i < between_.size(); ++i) {
      divide(between_[i], owners_of(i));
    }
  }

 private:
  using Names = std::vector<trace::StringId>;
  using Place = std::vector<uint32_t>::const_iterator;

  [[nodiscard]] const std::vector<PlannedOwner>& owners_of(size_t interval) const {
    return interval < pass_.copies.size() ? pass_.copies[interval].before : pass_.after;
  }

  [[nodiscard]] bool is_named(uint32_t i, std::string_view part) const {
    const trace::Event& event = sources_.trace.events[events_[i].event];
    return sources_.trace.name(event).find(part) != std::string_view::npos;
  }

  [[nodiscard]] Names names(Place begin, Place end) const {
    Names out;
    std::transform(begin, end, std::back_inserter(out),
                   [this](uint32_t i) { return sources_.trace.events[events_[i].event].name; });
    return out;
  }

  void give(uint32_t i, const PlannedOwner& owner) {
    const bool of_unit = owner.section == Section::kForward || owner.section == Section::kBackward;
    events_[i].owner = {owner.section, of_unit ? unit_named(owner.unit, timeline_) : kNoUnit};
    events_[i].basis = Basis::kOrder;
  }

  void divide(const std::vector<uint32_t>& work, const std::vector<PlannedOwner>& owners) {
    Place begin = work.begin(), end = work.end();
    size_t first = 0, last = owners.size();
    if (owners.size() > 1) {
      const Names head = block(owners.front()), tail = block(owners.back());
      if (!head.empty() && static_cast<size_t>(end - begin) >= head.size() &&
          names(begin, begin + static_cast<std::ptrdiff_t>(head.size())) == head) {
        for (size_t k = 0; k < head.size(); ++k) {
          give(*begin++, owners.front());
        }
        ++first;
      }
      if (!tail.empty() && static_cast<size_t>(end - begin) >= tail.size() &&
          names(end - static_cast<std::ptrdiff_t>(tail.size()), end) == tail) {
        for (size_t k = 0; k < tail.size(); ++k) {
          give(*--end, owners.back());
        }
        --last;
      }
    }
    for (; begin != end; ++begin) {
      if (last - first == 1) {
        give(*begin, owners[first]);
      } else {
        events_[*begin].owner = {Section::kAmbiguous, kNoUnit};
        events_[*begin].basis = Basis::kAmbiguous;
      }
    }
  }

  // The kernels of a block in this section; empty: not known.
  [[nodiscard]] Names block(const PlannedOwner& owner) const {
    const auto found = blocks_.find(owner.section);
    return owner.unit.empty() || found == blocks_.end() ? Names() : found->second;
  }

  const Sources& sources_;
  const PlannedPass& pass_;
  std::vector<SeenEvent>& events_;
  Timeline& timeline_;
  std::vector<uint32_t> copies_;                   // in order
  std::vector<std::vector<uint32_t>> between_{1};  // compute before the n-th copy
  std::map<Section, Names> blocks_;
  bool fits_ = true;
};

}  // namespace

void attribute_planned_compute(const Sources& sources,
                               const PlannedPass& pass,
                               const std::vector<uint32_t>& replay,
                               std::vector<SeenEvent>& events,
                               Timeline& timeline) {
  PlannedCompute(sources, pass, replay, events, timeline).attribute();
}

}  // namespace shardlens::analysis
