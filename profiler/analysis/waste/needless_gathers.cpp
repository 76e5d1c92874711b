#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "profiler/analysis/events/prefetch.h"
#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::kNoIndex;

// Units that were gathered more often than needed, and gathers that nothing waited for.
class GatherWaste {
 public:
  GatherWaste(const WasteInput& in, FoundWaste& found) : in_(in), found_(found) {}

  // [Note: Iterations] Forwards up to a backward, and that backward, are one iteration. A forward
  // of a unit outside the root's also begins a pass of the log, so passes are not iterations.
  void run() {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    const std::vector<Ran> ran = gathers_that_ran();
    const std::vector<bool> copied_out = copied_out_next();
    std::optional<uint32_t> root;
    for (uint32_t u = 0; u < in_.timeline.fsdp.units.size(); ++u) {
      root = in_.timeline.fsdp.units[u].fqn.empty() ? std::optional(u) : root;
    }
    find_unused(ran);
    size_t first = 0;
    bool backward = false;
    for (size_t i = 0; i <= events.size(); ++i) {
      const bool forward_again = i < events.size() && backward &&
                                 events[i].call == FsdpCall::kPreForward && !events[i].backward;
      if (i < events.size() && !forward_again) {
        backward = backward || events[i].call == FsdpCall::kPreBackward;
        continue;
      }
      if (backward && root) {
        count_gathers(ran, copied_out, first, i, *root);
      }
      first = i;
      backward = false;
    }
  }

 private:
  // A gather as it ran on the communicator.
  struct Ran {
    bool known = false;
    Nanoseconds exposed = 0;
    bool within = false;  // starts within the window
  };

  // By event of the log.
  [[nodiscard]] std::vector<Ran> gathers_that_ran() const {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    std::vector<Ran> out(events.size());
    size_t near = 0;
    const std::vector<Collective>& all = in_.timeline.collectives;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i + kAhead < all.size() && all[i + kAhead].issuer != kNoIndex) {
        prefetch(in_.trace.events[all[i + kAhead].issuer]);
      }
      const Collective& c = all[i];
      if (c.issuer == kNoIndex || c.kind != CollectiveKind::kAllGather) {
        continue;
      }
      const Event& issuer = in_.trace.events[c.issuer];
      const FsdpEvent* call = in_.timeline.fsdp.collective_at(issuer.track, issuer.start, near);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        Ran& ran = out[static_cast<size_t>(call - events.data())];
        ran.known = true;
        ran.exposed += in_.partition.exposed_length(i, in_.window);
        ran.within = contains(in_.window, c.when.start);
      }
    }
    return out;
  }

  void count_gathers(const std::vector<Ran>& ran,
                     const std::vector<bool>& copied_out,
                     size_t first,
                     size_t last,
                     uint32_t root) {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    int64_t forwards = 0;  // of the root
    size_t end = first;    // what is gathered after the last hook is for the next iteration
    for (size_t i = first; i < last; ++i) {
      forwards +=
          events[i].call == FsdpCall::kPreForward && !events[i].backward && events[i].unit == root
              ? 1
              : 0;
      end = events[i].call == FsdpCall::kUnshard || events[i].call == FsdpCall::kCopyOut ? end : i;
    }
    if (forwards != 1) {
      return;  // cut off at the trace's edge, or several forwards for one backward
    }
    std::map<std::pair<uint32_t, bool>, int64_t> seen;
    for (size_t i = first; i < end; ++i) {
      const FsdpEvent& e = events[i];
      if (e.call == FsdpCall::kUnshard && copied_out[i] && ++seen[{e.unit, e.backward}] > 1 &&
          ran[i].known && ran[i].within) {
        found_.add(WasteKind::kGatheredAgain, in_.timeline.fsdp.units[e.unit].fqn, ran[i].exposed);
      }
    }
  }

  // By event of the log: whether the next gather or copy-out of its unit is a copy-out, in the same
  // forward or backward. A later one may be of a gather that the trace has lost.
  [[nodiscard]] std::vector<bool> copied_out_next() const {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    std::vector<bool> out(events.size());
    std::vector<const FsdpEvent*> next(in_.timeline.fsdp.units.size(), nullptr);
    for (size_t i = events.size(); i-- > 0;) {
      const FsdpEvent& e = events[i];
      const FsdpEvent* after = next[e.unit];
      out[i] = after != nullptr && after->call == FsdpCall::kCopyOut &&
               after->forward == e.forward && after->backward == e.backward;
      if (e.call == FsdpCall::kUnshard || e.call == FsdpCall::kCopyOut) {
        next[e.unit] = &e;
      }
    }
    return out;
  }

  // A unit that is gathered again although its last result was never copied out. Only for units
  // that the trace shows to copy out.
  void find_unused(const std::vector<Ran>& ran) {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    std::vector<bool> copied_out(in_.timeline.fsdp.units.size());
    for (const FsdpEvent& e : events) {
      if (e.call == FsdpCall::kCopyOut) {
        copied_out[e.unit] = true;
      }
    }
    // By unit: the event that gathered it, if it was not copied out since.
    std::vector<std::optional<size_t>> pending(in_.timeline.fsdp.units.size());
    for (size_t i = 0; i < events.size(); ++i) {
      const FsdpEvent& e = events[i];
      // The end of a forward or backward shows that the unit was used, even where the trace has
      // lost the copy-out.
      if (e.call == FsdpCall::kCopyOut || e.call == FsdpCall::kPostForward ||
          e.call == FsdpCall::kPostBackward || e.call == FsdpCall::kReduce) {
        pending[e.unit] = std::nullopt;
      } else if (e.call == FsdpCall::kUnshard) {
        if (pending[e.unit]) {
          const Ran& before = ran[*pending[e.unit]];
          if (before.known && before.within && copied_out[e.unit]) {
            found_.add(WasteKind::kUnusedGather, in_.timeline.fsdp.units[e.unit].fqn,
                       before.exposed);
          }
        }
        pending[e.unit] = i;
      }
    }
  }

  const WasteInput& in_;
  FoundWaste& found_;
};

}  // namespace

void find_needless_gathers(const WasteInput& in, FoundWaste& found) {
  GatherWaste(in, found).run();
}

}  // namespace shardlens::analysis
