#include "sim/memory/operator_memory.h"

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"
#include "core/workload/workload_builder.h"
#include "tests/core/workload/with_communication.h"

namespace shardlens::sim {
namespace {

plan::Workload workload(plan::Program program = plan::Program::kEngine,
                        int64_t seq = 8,
                        plan::OptimizerImpl impl = plan::OptimizerImpl::kFused) {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
      "max_position_embeddings": 32})",
      "test");
  const plan::ResolvedPlan plan =
      plan::resolve(plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "plan.json"),
                    plan::module_tree(config), 1);
  return plan::step_workload(config, plan,
                             {.batch = 2, .seq = seq, .optimizer_impl = impl, .program = program});
}

// The backward operator with that name and module.
uint32_t find(const plan::Workload& in, std::string_view name, std::string_view module) {
  for (uint32_t i = 0; i < in.operators.size(); ++i) {
    const plan::Operator& op = in.operators[i];
    if (op.phase == plan::Phase::kBackward && op.name == name && op.module == module) {
      return i;
    }
  }
  ADD_FAILURE() << "no " << name << " of " << module;
  return 0;
}

// The last operator that reads output `part` of operator `op`.
uint32_t last_user(const std::vector<OperatorMemory>& memory, uint32_t op, uint32_t part) {
  for (uint32_t i = 0; i < memory.size(); ++i) {
    for (uint32_t k = 0; k < memory[i].end_count; ++k) {
      if (memory[i].ends[k].op == op && memory[i].ends[k].part == part) {
        return i;
      }
    }
  }
  ADD_FAILURE() << "no operator reads output " << part << " of operator " << op;
  return 0;
}

TEST(OperatorMemoryTest, GradientsOfTwoBranchesWaitForTheirOwn) {
  const plan::Workload in = workload();
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t silu = find(in, "shardlens::silu_multiply_backward", "model.layers.0.mlp");
  const Bytes branch = 2 * 8 * 96 * 4;
  EXPECT_EQ(memory[silu].handed, (std::array<Bytes, kHanded>{branch, branch, 0}));
  const uint32_t up = find(in, "aten::mm", "model.layers.0.mlp.up_proj");
  const uint32_t gate = find(in, "aten::mm", "model.layers.0.mlp.gate_proj");
  EXPECT_EQ(last_user(memory, silu, 0), up + 1);  // its two products
  EXPECT_EQ(last_user(memory, silu, 1), gate + 1);
  // The sum of both branches reads what the first one produced.
  EXPECT_EQ(last_user(memory, up + 1, 0), find(in, "aten::add", "model.layers.0.mlp.gate_proj"));
}

TEST(OperatorMemoryTest, ResidualsWaitForTheirBranch) {
  const plan::Workload in = workload();
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t first = find(in, "shardlens::rms_norm_backward", "model.norm");
  const uint32_t mlp = find(in, "aten::add", "model.layers.1.post_attention_layernorm");
  EXPECT_EQ(last_user(memory, first, 0), mlp);
  EXPECT_EQ(last_user(memory, mlp, 0), find(in, "aten::add", "model.layers.1.input_layernorm"));
}

TEST(OperatorMemoryTest, AttentionHandsOnThreeGradients) {
  const plan::Workload in = workload();
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t attention =
      find(in, "aten::scaled_dot_product_attention_backward", "model.layers.0.self_attn");
  const Bytes query = 2 * 8 * 64 * 4;
  EXPECT_EQ(memory[attention].handed[0], query / 2);  // of the values: half as many heads
  EXPECT_EQ(memory[attention].handed[1], query / 2);
  EXPECT_EQ(memory[attention].handed[2], query);
}

// Log-softmax's backward reads the gradient of nll_loss and writes another tensor of its size, so
// that both are alive, besides what forward saved.
TEST(OperatorMemoryTest, GradientsOfOnePartLiveUntilTheyAreTaken) {
  const plan::Workload in = workload(plan::Program::kTransformers);
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t nll = find(in, "aten::nll_loss_backward", "");
  const uint32_t softmax = find(in, "aten::_log_softmax_backward_data", "");
  EXPECT_EQ(last_user(memory, nll, 0), softmax);
  EXPECT_GT(last_user(memory, softmax, 0), softmax);
  // SiLU's gradient is taken by silu_backward; the other one waits for the up projection.
  const uint32_t silu = find(in, "aten::silu_backward", "model.layers.0.mlp");
  EXPECT_EQ(last_user(memory, silu - 1, 0), silu);
  const uint32_t gate = find(in, "aten::mm", "model.layers.0.mlp.gate_proj");
  EXPECT_GE(last_user(memory, silu - 2, 0), gate);
}

// Rows and hidden size are equal: the first product of mm's backward is the weight's gradient.
TEST(OperatorMemoryTest, SquareProductsHaveOneGradientOfTheirWeight) {
  const plan::Workload in = workload(plan::Program::kEngine, 64 / 2);
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t down = find(in, "aten::mm", "model.layers.0.mlp.down_proj");
  EXPECT_EQ(memory[down].gradient, 64 * 96 * 4);
  EXPECT_EQ(memory[down + 1].gradient, 0);
  EXPECT_TRUE(memory[down + 1].hands_on);
}

// torch.optim's AdamW with foreach takes the root of all second moments into new tensors.
// In a recorded pass all of a unit's backward follows the last operator of its forward, here a sum.
TEST(OperatorMemoryTest, RecordedProductsMakeTheGradientsOfTheirWeights) {
  plan::Workload in;
  const auto product = [&in](plan::Phase phase, int64_t m, int64_t n, int64_t k) {
    plan::Operator& op = in.operators.emplace_back();
    op.name = "aten::mm";
    op.kind = plan::OperatorKind::kGemm;
    op.phase = phase;
    op.m = m;
    op.n = n;
    op.k = k;
    op.written = m * n * 4;
    op.forward = phase == plan::Phase::kBackward ? 1 : -1;
  };
  product(plan::Phase::kForward, 10, 32, 8);  // ten rows, W of 8 x 32
  in.operators.emplace_back().name = "aten::add";
  product(plan::Phase::kBackward, 10, 8, 32);  // of the rows
  product(plan::Phase::kBackward, 32, 8, 10);  // of W
  product(plan::Phase::kBackward, 32, 9, 10);  // of nothing that is known
  for (uint32_t i = 0; i < in.operators.size(); ++i) {
    in.order.push_back({plan::WorkloadItem::Kind::kOperator, i});
  }
  const std::vector<OperatorMemory> memory = operator_memory(in);
  EXPECT_EQ(memory[2].gradient, 0);
  EXPECT_EQ(memory[3].gradient, 32 * 8 * 4);
  EXPECT_EQ(memory[4].gradient, 0);
}

TEST(OperatorMemoryTest, ForeachKeepsOneTensorPerParameter) {
  const plan::Workload in = workload(plan::Program::kEngine, 8, plan::OptimizerImpl::kForeach);
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const auto root = static_cast<uint32_t>(
      std::find_if(in.operators.begin(), in.operators.end(),
                   [](const plan::Operator& op) { return op.name == "aten::_foreach_sqrt"; }) -
      in.operators.begin());
  ASSERT_LT(root, in.operators.size());
  // Embedding and head; of two layers the queries, keys, values, outputs, three of the MLP, norms.
  const Bytes parameters = 2 * 128 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 128);
  EXPECT_EQ(memory[root].handed[0], parameters * 4);
  EXPECT_EQ(last_user(memory, root, 0), in.operators.size() - 1);
}

// Of gpt2, whose head is its embedding: the embedding's own gradient of the table, and the sum.
TEST(OperatorMemoryTest, TiedTablesHaveTwoMoreGradientsForAMoment) {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 128,
          "n_positions": 32, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})",
      "test");
  const plan::ResolvedPlan plan =
      plan::resolve(plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "plan.json"),
                    plan::module_tree(config), 1);
  const plan::Workload in = plan::step_workload(
      config, plan, {.batch = 2, .seq = 8, .program = plan::Program::kTransformers});
  const std::vector<OperatorMemory> memory = operator_memory(in);
  const uint32_t table = find(in, "aten::embedding_dense_backward", "transformer.wte");
  const Bytes bytes = 128 * 64 * 4;
  EXPECT_EQ(memory[table].handed, (std::array<Bytes, kHanded>{bytes, bytes, 0}));
  EXPECT_EQ(last_user(memory, table, 0), table);
  EXPECT_EQ(last_user(memory, table, 1), table);
  const uint32_t positions = find(in, "aten::embedding_dense_backward", "transformer.wpe");
  EXPECT_EQ(memory[positions].handed, (std::array<Bytes, kHanded>{}));
}

// Communication with sizes does what an operator with these sizes does in its place.
TEST(OperatorMemoryTest, CommunicationIsAnOperator) {
  plan::Workload with_operators = workload();
  plan::Workload with_communication = with_operators;
  for (const plan::Phase phase : {plan::Phase::kForward, plan::Phase::kBackward}) {
    const size_t at = shardlens::test::position_of(with_operators, phase, 5);
    const plan::WorkloadItem before = with_operators.order[at];
    const int32_t forward = with_operators.operators[before.index].forward;
    plan::Operator op;
    op.phase = phase;
    op.unit = 0;
    op.written = 4096;
    op.saved = phase == plan::Phase::kForward ? 512 : 0;
    op.forward = forward;
    // Operators after it get the next index, as in a workload that was made with it.
    const uint32_t index = before.index + 1;
    for (plan::Operator& each : with_operators.operators) {
      each.forward += each.forward >= static_cast<int32_t>(index) ? 1 : 0;
    }
    for (plan::WorkloadItem& each : with_operators.order) {
      each.index += each.kind == before.kind && each.index >= index ? 1 : 0;
    }
    with_operators.operators.insert(with_operators.operators.begin() + index, op);
    with_operators.order.insert(with_operators.order.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                {before.kind, index});
    plan::Communication same;
    same.phase = phase;
    same.written = op.written;
    same.saved = op.saved;
    if (forward >= 0) {
      const auto others = std::ranges::count(with_communication.communications,
                                             plan::Phase::kForward, &plan::Communication::phase);
      same.forward = plan::WorkloadItem{before.kind, static_cast<uint32_t>(forward - others)};
    }
    shardlens::test::insert_communication(with_communication, at + 1, same);
  }
  const std::vector<OperatorMemory> expected = operator_memory(with_operators);
  const std::vector<OperatorMemory> found = operator_memory(with_communication);
  ASSERT_EQ(found.size(), expected.size());
  std::vector<uint32_t> numbers;  // of `found`, in the order
  for (const plan::WorkloadItem& item : with_communication.order) {
    if (item.kind != plan::WorkloadItem::Kind::kHook) {
      numbers.push_back(plan::number_of(with_communication, item));
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const OperatorMemory& one = found[numbers[i]];
    SCOPED_TRACE(i);
    EXPECT_EQ(one.saved, expected[i].saved);
    EXPECT_EQ(one.written, expected[i].written);
    EXPECT_EQ(one.handed, expected[i].handed);
    EXPECT_EQ(one.users, expected[i].users);
    EXPECT_EQ(one.hands_on, expected[i].hands_on);
    EXPECT_EQ(one.kind, expected[i].kind);
    ASSERT_EQ(one.end_count, expected[i].end_count);
    for (uint32_t end = 0; end < one.end_count; ++end) {
      EXPECT_EQ(one.ends[end].op, numbers[expected[i].ends[end].op]);
      EXPECT_EQ(one.ends[end].part, expected[i].ends[end].part);
    }
  }
}

}  // namespace
}  // namespace shardlens::sim
