#include "sim/hardware/curve_json.h"

#include <array>
#include <string>
#include <vector>

namespace shardlens::sim {

using plan::JsonNode;

namespace {

constexpr Bytes kLargestMessage = Bytes{1} << 50;

}  // namespace

CollectiveCurve read_curve(const JsonNode& node,
                           int64_t most_ranks,
                           const std::function<double(const JsonNode& time)>& microseconds) {
  static const std::vector<std::string> kKinds{"all_gather", "reduce_scatter", "all_reduce"};
  constexpr std::array kOf{CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                           CollectiveKind::kAllReduce};
  CollectiveCurve curve;
  curve.kind = kOf[node.require("kind").one_of(kKinds)];
  curve.ranks = static_cast<int>(node.require("ranks").integer(2, most_ranks));
  for (const JsonNode& each : node.require("points").items("points [bytes, microseconds]")) {
    const std::vector<JsonNode> pair = each.items("[bytes, microseconds]");
    if (pair.size() != 2) {
      each.fail("expected [bytes, microseconds]");
    }
    const Bytes before = curve.points.empty() ? 0 : curve.points.back().bytes;
    curve.points.push_back({pair[0].integer(before + 1, kLargestMessage), microseconds(pair[1])});
  }
  return curve;
}

}  // namespace shardlens::sim
