#include "sim/scenario/prediction_json.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/plan_mesh_json.h"
#include "core/workload/software.h"
#include "sim/scenario/uncertainty.h"
#include "sim/scenario/uneven_ranks.h"

namespace shardlens::sim {
namespace {

using nlohmann::ordered_json;

ordered_json interval_json(const std::optional<PredictedInterval>& interval) {
  return interval ? ordered_json{interval->low, interval->high} : ordered_json();
}

// Of ranks with unequal work.
ordered_json ranks_json(const std::vector<UnevenRank>& ranks) {
  auto out = ordered_json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const UnevenRank& each = ranks[rank];
    auto exchanges = ordered_json::array();
    for (const Exchange& one : each.exchanges) {
      exchanges.push_back({{"module", one.module},
                           {"sent_bytes", one.bytes.sent},
                           {"received_bytes", one.bytes.received}});
    }
    out.push_back({{"rank", rank},
                   {"compute_ns", each.compute},
                   {"peer_wait_ns", each.waited},
                   {"measured_peer_wait_ns",
                    each.measured_wait ? ordered_json(*each.measured_wait) : ordered_json()},
                   {"all_to_alls", std::move(exchanges)}});
  }
  return out;
}

}  // namespace

ordered_json baseline_json(const Baseline& baseline) {
  auto left_out = ordered_json::array();
  for (const StepsLeftOut& each : baseline.left_out) {
    left_out.push_back({{"steps", each.steps}, {"reason", each.reason}});
  }
  return {{"measured_step_ns", baseline.measured},
          {"simulated_step_ns", baseline.simulated},
          {"error", baseline.error()},
          {"steps", baseline.steps},
          {"one_pass", baseline.one_pass},
          {"left_out", std::move(left_out)}};
}

ordered_json extrapolations_json(std::span<const Extrapolation> all) {
  auto out = ordered_json::array();
  for (const Extrapolation& each : all) {
    if (each.is_far()) {
      out.push_back({{"work", each.work}, {"beyond", each.beyond}, {"share", each.share}});
    }
  }
  return out;
}

ordered_json prediction_json(const Prediction& prediction) {
  const StepFigures& figures = prediction.figures;
  const StepMemory& memory = prediction.memory;
  ordered_json out;
  out["machine"] = prediction.machine;
  out["mesh"] = plan::every_axis_json(plan::sizes_of(*prediction.priced.plan));
  out["step_ns"] = figures.duration();
  out["compute_ns"] = figures.compute;
  out["exposed_comm_ns"] = figures.exposed_comm;
  out["exposed_copy_ns"] = figures.exposed_copy;
  out["idle_ns"] = figures.idle;
  out["tokens_per_s"] = prediction.tokens_per_s;
  out["mfu"] = prediction.mfu ? ordered_json(*prediction.mfu) : ordered_json();
  out["peak_allocated_bytes"] = memory.peak_allocated;
  out["peak_requested_bytes"] = memory.peak_requested;
  out["peak_reserved_bytes"] = memory.peak_reserved;
  out["fits"] = memory.fits;
  for (int i = 0; i < kMemoryCategoryCount; ++i) {
    out["memory"][std::string(name_of(static_cast<MemoryCategory>(i)))] =
        memory.at_peak[static_cast<size_t>(i)];
  }
  out["outside_memory"] = {{"context", prediction.outside_memory.context},
                           {"nccl", prediction.outside_memory.nccl},
                           {"cublas", prediction.outside_memory.cublas}};
  out["baseline"] = prediction.baseline ? baseline_json(*prediction.baseline) : ordered_json();
  out["interval_ns"] = interval_json(prediction.interval);
  const auto tokens = tokens_interval(prediction);
  out["tokens_per_s_interval"] = tokens ? ordered_json{tokens->low, tokens->high} : ordered_json();
  out["change_interval_ns"] = interval_json(prediction.change_interval);
  out["extrapolated"] = extrapolations_json(prediction.extrapolated);
  out["unknown"] = prediction.unknown;
  if (const std::vector<UnevenRank> ranks = uneven_ranks(prediction); !ranks.empty()) {
    out["ranks"] = ranks_json(ranks);
  }
  out["software"] = plan::software_json(prediction.settings.software);
  return out;
}

}  // namespace shardlens::sim
