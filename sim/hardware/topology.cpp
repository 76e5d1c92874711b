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

constexpr int kAllOrders = 8;  // up to this many GPUs, all orders are tried

using Route = std::vector<size_t>;  // wires, the last first

// Each link is two directed wires: 2 i from a to b of links[i], 2 i + 1 from b to a.
class Wiring {
 public:
  Wiring(const std::vector<TopologyLink>& links, int gpus) : gpus_(static_cast<size_t>(gpus)) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      end(fmt::format("gpu{}", gpu));
    }
    for (size_t i = 0; i < links.size(); ++i) {
      const size_t a = end(links[i].a), b = end(links[i].b);
      wires_[a].emplace_back(b, 2 * i);
      wires_[b].emplace_back(a, 2 * i + 1);
    }
  }

  // Breadth-first search for the route with the fewest wires; of several, the first in the list.
  // Routes do not go through other GPUs. Empty: there is none.
  [[nodiscard]] Route route(size_t from, size_t to) const {
    std::vector<std::pair<size_t, size_t>> came(wires_.size(), {SIZE_MAX, 0});
    std::deque<size_t> next{from};
    came[from] = {from, 0};
    while (!next.empty() && came[to].first == SIZE_MAX) {
      const size_t at = next.front();
      next.pop_front();
      if (at != from && at < gpus_) {
        continue;
      }
      for (const auto& [other, wire] : wires_[at]) {
        if (came[other].first == SIZE_MAX) {
          came[other] = {at, wire};
          next.push_back(other);
        }
      }
    }
    Route route;
    for (size_t at = to; at != from && came[to].first != SIZE_MAX; at = came[at].first) {
      route.push_back(came[at].second);
    }
    return route;
  }

 private:
  size_t end(const std::string& name) {
    const auto [it, fresh] = ends_.try_emplace(name, wires_.size());
    if (fresh) {
      wires_.emplace_back();
    }
    return it->second;
  }

  size_t gpus_;
  std::map<std::string, size_t> ends_;
  std::vector<std::vector<std::pair<size_t, size_t>>> wires_;  // by end: other end, wire
};

// GB/s of a ring whose hop i takes the route hops(i); 0: a hop has none.
template <typename Hops>
double gbps_of_ring(const std::vector<TopologyLink>& links, size_t gpus, const Hops& hops) {
  std::vector<int> passed(2 * links.size(), 0);
  for (size_t i = 0; i < gpus; ++i) {
    const Route& route = hops(i);
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
      slowest = std::min(slowest, links[wire / 2].gbps / passed[wire]);
    }
  }
  return slowest;
}

double best_of_all_orders(const std::vector<TopologyLink>& links, const Wiring& wiring, size_t n) {
  std::vector<Route> routes;  // by from · n + to
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      routes.push_back(wiring.route(from, to));
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  double best = 0;
  do {  // a ring has no beginning, so the first GPU stays in its place
    best = std::max(best, gbps_of_ring(links, n, [&](size_t i) -> const Route& {
                      return routes[order[i] * n + order[(i + 1) % n]];
                    }));
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return best;
}

}  // namespace

double ring_gbps(const std::vector<TopologyLink>& links, int gpus) {
  if (gpus < 2) {
    return 0;
  }
  const Wiring wiring(links, gpus);
  const auto n = static_cast<size_t>(gpus);
  // Of more GPUs one route at a time is kept: those of a large file may have thousands of wires
  // each.
  return gpus <= kAllOrders
             ? best_of_all_orders(links, wiring, n)
             : gbps_of_ring(links, n, [&](size_t i) { return wiring.route(i, (i + 1) % n); });
}

double group_gbps(const std::vector<TopologyLink>& links, int ranks, double all_gbps) {
  const std::string first = "gpu0";
  double all = 0, within = 0;
  for (const TopologyLink& link : links) {
    if (link.a != first && link.b != first) {
      continue;
    }
    if (link.gbps >= all_gbps) {  // one link has a whole ring
      return all_gbps;
    }
    const std::string& other = link.a == first ? link.b : link.a;
    bool reaches = !other.starts_with("gpu");
    for (int gpu = 1; gpu < ranks && !reaches; ++gpu) {
      reaches = other == fmt::format("gpu{}", gpu);
    }
    all += link.gbps;
    within += reaches ? link.gbps : 0;
  }
  return within > 0 ? all_gbps * within / all : all_gbps;
}

}  // namespace shardlens::sim
