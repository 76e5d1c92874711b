// A model far larger than this machine's memory is sharded before its memory is allocated.
#include <chrono>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/dist/world.h"
#include "core/models/model.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/parallel_model.h"

namespace shardlens::train {
namespace {

constexpr const char* kLlama70b = R"({"model_type": "llama", "vocab_size": 128256,
  "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192})";

// Resident bytes of this process.
int64_t resident() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, pages = 0;
  in >> total >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

TEST(DeferredModelTest, SeventyBillionParametersOnEightRanks) {
  const int64_t before = resident();
  const auto start = std::chrono::steady_clock::now();
  const plan::ModelConfig config = plan::parse_model_config(kLlama70b, "70b");
  const auto model = models::make_model(config, models::Init::kNone);
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = 8;
  options.rank = 3;
  const auto world = dist::World::join(options);
  const plan::ModuleTree tree = plan::module_tree(config);
  fsdp::Options sharding;
  sharding.world = world.get();
  sharding.deferred = true;
  const auto sharded =
      apply_plan(model, plan::resolve(plan::strategy_plan("full_shard", tree), tree, 8), sharding);
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start);

  int64_t held = 0, all = 0;
  for (const at::Tensor& shard : sharded->flat_shards()) {
    held += shard.numel();
    EXPECT_EQ(shard.storage().nbytes(), 0U);
  }
  for (const plan::Parameter& parameter : tree.parameters) {
    all += parameter.numel;
  }
  EXPECT_EQ(all, 70'553'706'496);  // as Meta's model
  EXPECT_EQ(sharded->flat_shards().size(), 81U);
  EXPECT_EQ(held, all / 8);  // every unit's size divides by 8
  EXPECT_LT(resident() - before, int64_t{2} << 30);
  EXPECT_LT(seconds.count(), 10);
  RecordProperty("seconds", std::to_string(seconds.count()));
  RecordProperty("mebibytes", std::to_string((resident() - before) >> 20));
}

}  // namespace
}  // namespace shardlens::train
