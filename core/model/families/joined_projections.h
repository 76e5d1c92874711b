#pragma once

#include <cstdint>
#include <string>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// Queries, keys and values by one product, the linear layer `product`, of whose result they are
// copies. `bias`: it has one.
void copied_projections(WorkloadBuilder& build,
                        const ModelConfig& config,
                        const std::string& product,
                        bool bias);

// After one product that makes queries (`q` features), keys and values (`kv` each): queries and
// keys, of which a part was rotated, are put together from that and the rest; values are views of
// the result. Each slice's gradient has the size of the product.
void put_rotated_together(WorkloadBuilder& build, int64_t q, int64_t kv);

}  // namespace shardlens::plan
