#include "core/workload/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shardlens::plan {
namespace {

constexpr int64_t kTileRows = 128;  // of the larger tiles of matrix products (sim/cost/gemm_model)
// Source  TOKEN_GROUP_ALIGN_SIZE_M of torchtitan 0.2.2, models/moe/utils.py.
constexpr int64_t kGroupRows = 8;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

std::vector<int64_t> rows_of_experts(int64_t rows, int64_t experts, double skew) {
  std::vector<double> ends(static_cast<size_t>(experts));  // of the cumulative shares
  double sum = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    sum += std::pow(static_cast<double>(i + 1), -skew);
    ends[i] = sum;
  }
  std::vector<int64_t> out;
  int64_t given = 0;
  for (const double end : ends) {
    const int64_t upto =
        std::min<int64_t>(rows, std::llround(end / sum * static_cast<double>(rows)));
    out.push_back(upto - given);
    given = upto;
  }
  return out;
}

Routing route(int64_t rows, int64_t experts, double skew) {
  if (skew == 0) {
    const int64_t chosen = std::min(experts, rows);
    return {chosen, divided_up(rows, chosen)};
  }
  return route(rows_of_experts(rows, experts, skew));
}

Routing route(std::span<const int64_t> rows_of_experts) {
  Routing out;
  int64_t tiles = 0;
  bool equal = true;
  for (const int64_t rows : rows_of_experts) {
    out.chosen += rows > 0 ? 1 : 0;
    tiles += divided_up(rows, kTileRows);
    equal = equal && rows == rows_of_experts.front();
  }
  out.rows_of_each = equal ? rows_of_experts.front() : divided_up(tiles * kTileRows, out.chosen);
  return out;
}

// Source  _permute() and generate_permute_indices() of torchtitan 0.2.2, models/moe: each expert
//         has at least one group of rows.
DividedRouting route_over(int64_t rows, int64_t experts, int64_t ranks, double skew, bool pads) {
  const std::vector<int64_t> all = rows_of_experts(rows, experts, skew);
  const auto of_rank = static_cast<size_t>(experts / ranks);
  DividedRouting out;
  out.own = rows;
  size_t fullest = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    const auto* first = all.data() + rank * of_rank;
    out.sent.push_back(std::accumulate(first, first + of_rank, int64_t{0}));
    fullest = out.sent[rank] > out.sent[fullest] ? rank : fullest;
  }
  out.received = ranks * out.sent[fullest];
  out.returned = out.own;
  if (!pads) {
    for (size_t i = 0; i < of_rank; ++i) {
      out.rows_of_experts.push_back(ranks * all[fullest * of_rank + i]);
    }
    out.padded = out.received;
    return out;
  }
  for (size_t i = 0; i < of_rank; ++i) {
    const int64_t groups = divided_up(ranks * all[fullest * of_rank + i], kGroupRows);
    out.rows_of_experts.push_back(std::max<int64_t>(1, groups) * kGroupRows);
  }
  out.padded = divided_up(out.received, kGroupRows) * kGroupRows +
               static_cast<int64_t>(of_rank) * kGroupRows;
  return out;
}

// A rank has experts of a token unless none of its choices, without one twice, is among them.
DividedRouting sent_once(DividedRouting routing,
                         int64_t tokens,
                         int64_t experts,
                         int64_t per_token,
                         std::optional<int64_t> ranks_per_token) {
  const auto of_ranks = static_cast<double>(routing.own);
  int64_t own = 0, most = 0;
  for (int64_t& sent : routing.sent) {
    const double share = static_cast<double>(sent) / of_ranks;
    double none = 1;
    for (int64_t i = 0; i < per_token; ++i) {
      const auto left = static_cast<double>(experts - i);
      none *= std::max(0.0, 1 - share * static_cast<double>(experts) / left);
    }
    const double with =
        ranks_per_token ? std::min(1.0, share * static_cast<double>(*ranks_per_token)) : 1 - none;
    sent = std::llround(with * static_cast<double>(tokens));
    own += sent;
    most = std::max(most, sent);
  }
  routing.own = own;
  routing.received = most * static_cast<int64_t>(routing.sent.size());
  routing.returned = tokens;
  return routing;
}

}  // namespace shardlens::plan
