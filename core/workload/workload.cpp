#include "core/workload/workload.h"

#include <algorithm>
#include <numeric>

namespace shardlens::plan {
namespace {

// What goes one way, from all: the sum of the parts; what goes the other way, to one: its part from
// each.
Bytes of_all(const Communication& each) {
  return each.parts.empty() ? each.bytes
                            : std::accumulate(each.parts.begin(), each.parts.end(), Bytes{0});
}
Bytes of_one(const Communication& each, int64_t position) {
  return each.parts.empty()
             ? each.bytes
             : static_cast<Bytes>(each.parts.size()) * each.parts.at(static_cast<size_t>(position));
}

}  // namespace

Bytes sent_by(const Communication& each, int64_t position) {
  return each.returns ? of_one(each, position) : of_all(each);
}

Bytes received_by(const Communication& each, int64_t position) {
  return each.returns ? of_all(each) : of_one(each, position);
}

bool is_attention_backward(const Operator& op) {
  return op.kind == OperatorKind::kAttention && op.name.find("backward") != std::string::npos;
}

bool dimensions_fit(const Operator& op) {
  int64_t product = 1;
  for (const int64_t size : {op.batch, op.m, op.n, op.k}) {
    // An operator may have no k, and a product may not overflow before it is multiplied by 0.
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product) ||
        product > kMostWork) {
      return false;
    }
  }
  return true;
}

}  // namespace shardlens::plan
