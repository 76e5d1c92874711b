#include "core/workload/routing.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardlens::plan {
namespace {

constexpr int64_t kTileRows = 128;  // of the larger tiles of matrix products (sim/cost/gemm_model)

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Routing route(int64_t rows, int64_t experts, double skew) {
  Routing out;
  out.chosen = std::min(experts, rows);
  out.rows_of_each = divided_up(rows, out.chosen);
  if (skew == 0) {
    return out;
  }
  std::vector<double> shares(static_cast<size_t>(experts));
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i] = std::pow(static_cast<double>(i + 1), -skew);
    sum += shares[i];
  }
  // Each expert has the rows up to its end of the cumulative shares, so that all rows are given.
  int64_t given = 0, tiles = 0;
  double upto = 0;
  out.chosen = 0;
  for (const double share : shares) {
    upto += share / sum;
    const int64_t end = std::min<int64_t>(rows, std::llround(upto * static_cast<double>(rows)));
    out.chosen += end > given ? 1 : 0;
    tiles += divided_up(end - given, kTileRows);
    given = end;
  }
  out.rows_of_each = divided_up(tiles * kTileRows, out.chosen);
  return out;
}

}  // namespace shardlens::plan
