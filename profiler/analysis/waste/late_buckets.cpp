#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::kNoIndex;

class LateBuckets {
 public:
  LateBuckets(const WasteInput& in, FoundWaste& found) : in_(in), found_(found) {}

  // A bucket of DDP is reduced when its last gradient is complete. If in most backwards that one
  // came much later than the others, and nothing was communicated meanwhile, the others could have
  // been reduced then.
  void run() {
    std::map<std::pair<size_t, size_t>, size_t> reductions;  // (pass, bucket) → collective
    for (size_t i = 0; i < in_.timeline.collectives.size(); ++i) {
      const Collective& c = in_.timeline.collectives[i];
      if (c.issuer != kNoIndex && c.part == UnitPart::kAllReduce) {
        const Event& issuer = in_.trace.events[c.issuer];
        if (const auto place = in_.timeline.ddp.bucket_at(issuer.track, issuer.start)) {
          reductions.emplace(std::pair(place->pass, place->bucket), i);
        }
      }
    }
    std::map<std::string, int64_t> reduced;  // how often
    for (const auto& [place, i] : reductions) {
      const std::string name = in_.timeline.ddp.name_of({place.first, place.second});
      ++reduced[name];
      const Nanoseconds lost =
          lost_by_waiting(in_.timeline.ddp.passes[place.first].buckets[place.second], i);
      if (lost > 0) {
        found_.add(WasteKind::kLateBucket, name, lost);
      }
    }
    found_.erase_if([&](const Waste& waste) {
      return waste.kind == WasteKind::kLateBucket && 2 * waste.count <= reduced[waste.where];
    });
  }

 private:
  // A gradient of a bucket. What its copy into the bucket took shows its size where the trace does
  // not have it.
  struct Gradient {
    Nanoseconds complete = 0;
    double size = 0;
  };

  // What the bucket's all-reduce lost because the bucket waited for its last gradient; 0: it did
  // not wait, or lost less than a quarter of its time.
  [[nodiscard]] Nanoseconds lost_by_waiting(const DdpBucket& bucket, size_t reduction) const {
    const std::vector<Gradient> gradients = gradients_of(bucket);
    if (gradients.size() < 3) {
      return 0;
    }
    const Nanoseconds first = gradients.front().complete, last = gradients.back().complete;
    const Interval wait{gradients[gradients.size() - 2].complete, last};
    const Nanoseconds idle = wait.length() - length_within(in_.timeline.communication, wait),
                      transfer = in_.timeline.collectives[reduction].when.length();
    if (2 * idle <= last - first || idle <= transfer) {
      return 0;
    }
    double sum = 0;
    for (const Gradient& each : gradients) {
      sum += each.size;
    }
    // The last gradient itself cannot be reduced earlier.
    const double others = sum > 0 ? 1 - gradients.back().size / sum : 0;
    const Nanoseconds lost =
        std::min(length_of(in_.partition.exposed(reduction, in_.window)),
                 static_cast<Nanoseconds>(others * static_cast<double>(transfer)));
    return 4 * lost < transfer ? 0 : lost;
  }

  // In order of completion. On a device, a gradient is complete when the last kernel that its
  // thread had launched has ended.
  [[nodiscard]] std::vector<Gradient> gradients_of(const DdpBucket& bucket) const {
    std::vector<Gradient> out;
    const bool sizes = std::all_of(bucket.gradients.begin(), bucket.gradients.end(),
                                   [](const DdpGradient& each) { return each.numel >= 0; });
    for (const DdpGradient& each : bucket.gradients) {
      Interval copy = each.when;
      if (in_.timeline.device) {
        const ThreadLaunches::Launch* launch =
            in_.launches.last_before(bucket.track, each.when.end);
        if (launch == nullptr || (!sizes && launch->time < each.when.start)) {
          return {};
        }
        const Event& kernel = in_.trace.events[launch->event->event];
        copy = {kernel.start, kernel.end()};
      }
      out.push_back({copy.end, static_cast<double>(sizes ? each.numel : copy.length())});
    }
    std::sort(out.begin(), out.end(),
              [](const Gradient& a, const Gradient& b) { return a.complete < b.complete; });
    return out;
  }

  const WasteInput& in_;
  FoundWaste& found_;
};

}  // namespace

void find_late_buckets(const WasteInput& in, FoundWaste& found) {
  LateBuckets(in, found).run();
}

}  // namespace shardlens::analysis
