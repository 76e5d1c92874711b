#include "core/workload/workload.h"

#include <algorithm>

namespace shardlens::plan {

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
