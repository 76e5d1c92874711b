#include "sim/hardware/curve_json.h"

#include <array>
#include <string>
#include <vector>

namespace shardlens::sim {

using plan::JsonNode;

CollectiveCurve read_curve(const JsonNode& node,
                           int64_t most_ranks,
                           const std::function<double(const JsonNode& time)>& microseconds) {
  static const std::vector<std::string> kKinds{"all_gather", "reduce_scatter", "all_reduce"};
  constexpr std::array kOf{CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                           CollectiveKind::kAllReduce};
  CollectiveCurve curve;
  curve.kind = kOf[node.require("kind").one_of(kKinds)];
  curve.ranks = static_cast<int>(node.require("ranks").integer(2, most_ranks));
  curve.points = read_points<CollectiveCurve::Point>(node.require("points"), microseconds);
  return curve;
}

}  // namespace shardlens::sim
