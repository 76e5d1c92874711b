#include "sim/hardware/topology.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace shardlens::sim {
namespace {

constexpr int kAllOrders = 8;  // up to so many GPUs, all orders are tried

// Each link is two directed wires: 2 i from a to b of links[i], 2 i + 1 from b to a.
class Routes {
 public:
  Routes(const std::vector<TopologyLink>& links, int gpus) : links_(links), gpus_(gpus) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      end(fmt::format("gpu{}", gpu));
    }
    for (size_t i = 0; i < links.size(); ++i) {
      const size_t a = end(links[i].a), b = end(links[i].b);
      wires_[a].emplace_back(b, 2 * i);
      wires_[b].emplace_back(a, 2 * i + 1);
    }
    for (int from = 0; from < gpus; ++from) {
      find(static_cast<size_t>(from));
    }
  }

  // GB/s of a ring in this order; 0: a hop has no route.
  [[nodiscard]] double ring(const std::vector<int>& order) const {
    std::vector<int> passed(2 * links_.size(), 0);
    for (size_t i = 0; i < order.size(); ++i) {
      const auto& route =
          routes_[static_cast<size_t>(order[i] * gpus_ + order[(i + 1) % order.size()])];
      if (route.empty()) {
        return 0;
      }
      for (const size_t wire : route) {
        ++passed[wire];
      }
    }
    double slowest = std::numeric_limits<double>::infinity();
    for (size_t wire = 0; wire < passed.size(); ++wire) {
      if (passed[wire] > 0) {
        slowest = std::min(slowest, links_[wire / 2].gbps / passed[wire]);
      }
    }
    return slowest;
  }

 private:
  size_t end(const std::string& name) {
    const auto [it, fresh] = ends_.try_emplace(name, wires_.size());
    if (fresh) {
      wires_.emplace_back();
    }
    return it->second;
  }

  // Breadth-first search for the route with the fewest wires; of several, the first in the list.
  // Routes do not go through other GPUs.
  void find(size_t from) {
    std::vector<std::pair<size_t, size_t>> came(wires_.size(), {SIZE_MAX, 0});
    std::deque<size_t> next{from};
    came[from] = {from, 0};
    while (!next.empty()) {
      const size_t at = next.front();
      next.pop_front();
      if (at != from && at < static_cast<size_t>(gpus_)) {
        continue;
      }
      for (const auto& [to, wire] : wires_[at]) {
        if (came[to].first == SIZE_MAX) {
          came[to] = {at, wire};
          next.push_back(to);
        }
      }
    }
    routes_.resize(static_cast<size_t>(gpus_ * gpus_));
    for (size_t to = 0; to < static_cast<size_t>(gpus_); ++to) {
      if (to == from || came[to].first == SIZE_MAX) {
        continue;
      }
      for (size_t at = to; at != from; at = came[at].first) {
        routes_[from * static_cast<size_t>(gpus_) + to].push_back(came[at].second);
      }
    }
  }

  const std::vector<TopologyLink>& links_;
  int gpus_;
  std::map<std::string, size_t> ends_;
  std::vector<std::vector<std::pair<size_t, size_t>>> wires_;  // by end: other end, wire
  std::vector<std::vector<size_t>> routes_;                    // by from · gpus + to: wires
};

}  // namespace

double ring_gbps(const std::vector<TopologyLink>& links, int gpus) {
  if (gpus < 2) {
    return 0;
  }
  const Routes routes(links, gpus);
  std::vector<int> order(static_cast<size_t>(gpus));
  std::iota(order.begin(), order.end(), 0);
  double best = routes.ring(order);
  if (gpus <= kAllOrders) {
    // A ring has no beginning, so the first GPU stays in its place.
    while (std::next_permutation(order.begin() + 1, order.end())) {
      best = std::max(best, routes.ring(order));
    }
  }
  return best;
}

}  // namespace shardlens::sim
