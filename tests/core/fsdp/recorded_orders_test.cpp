// The engine compared with PyTorch's FSDP1 and FSDP2 (tests/data/orders.json): every all-gather,
// wait, free, reduction and hook of every recorded program that the engine can run.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/sharded_unit.h"
#include "tests/core/fsdp/chain.h"
#include "tests/core/schedule/orders_case.h"

namespace shardlens::fsdp {
namespace {

using schedule::BufferKind;
using schedule::Op;
using schedule::Stream;
using schedule::test::OrdersCase;
using test::Chain;

// Records the engine's events in the codes of orders.json.
class Events : public NullRecorder {
 public:
  explicit Events(bool fsdp1) : fsdp1_(fsdp1) {}
  uint32_t hook(const HookEvent& event) override {
    if (event.recompute) {
      if (event.hook == Hook::kPreForward) {
        write("Q" + name(event.unit));
      }
      return 0;
    }
    static const std::map<Hook, char> codes{{Hook::kPreForward, 'F'},
                                            {Hook::kPreBackward, 'B'},
                                            {Hook::kGradsReady, 'P'},
                                            {Hook::kBackwardEnd, 'C'}};
    const bool reshard_only =
        fsdp1_ && event.hook == Hook::kGradsReady && event.grads == Grads::kNone;
    if (reshard_only) {  // FSDP1's post-backward of a frozen unit
      write("O" + name(event.unit));
    } else if (const auto code = codes.find(event.hook); code != codes.end()) {
      code->second == 'C' ? write("C") : write(code->second + name(event.unit));
    }
    return 0;
  }
  void action(uint32_t /*seq*/, const schedule::Action& action) override {
    const std::string unit = name(action.unit);
    bool& full = full_[action.unit];
    if (action.op == Op::kAllGather) {
      write("A" + unit);
    } else if (action.op == Op::kReduceScatter) {
      write("R" + unit);
    } else if (action.op == Op::kAllReduce) {
      write("X" + unit);
    } else if (fsdp1_) {
      fsdp1_action(action, unit);
    } else if (action.op == Op::kUseFull && !std::exchange(full, true)) {
      write("W" + unit);
    } else if (action.op == Op::kUseShard && std::exchange(full, false)) {
      write((to_sub_shard_ ? "K" : "S") + unit);
    }
    to_sub_shard_ = action.op == Op::kCopyOut && action.buffer.kind == BufferKind::kSubShard;
  }
  std::string take() { return std::exchange(events_, {}); }

 private:
  void fsdp1_action(const schedule::Action& action, const std::string& unit) {
    if (action.op == Op::kHostWait) {
      write("L" + unit);
    } else if (action.op == Op::kStreamWait && action.stream == Stream::kCompute &&
               action.cause != schedule::Cause::kBackwardEnd) {
      write("W" + unit);
    } else if (action.op == Op::kFree && action.buffer.kind == BufferKind::kUnsharded) {
      write("S" + unit);
    }
  }
  static std::string name(UnitId unit) { return unit == 0 ? "r" : std::to_string(unit - 1); }
  void write(const std::string& token) { events_ += (events_.empty() ? "" : " ") + token; }

  bool fsdp1_;
  bool to_sub_shard_ = false;
  std::string events_;
  std::map<UnitId, bool> full_;
};

// The recorded events without the codes for leaving a hook. What FSDP2 does in its final callback
// for units with gradients comes before the callback, since here accumulators announce gradients,
// as in FSDP1. Units without gradients are freed in the callback.
std::string normal(const OrdersCase::Iteration& recorded, bool fsdp1) {
  std::vector<std::string> tokens, callback, group;
  std::set<std::string> gathered;
  bool inside = false;
  std::istringstream in(recorded.events);
  for (std::string token; in >> token;) {
    const char code = token[0];
    if (fsdp1) {
      // FSDP1 waits at every use, also where nothing was gathered.
      const bool vacuous = code == 'W' && gathered.erase(token.substr(1)) == 0;
      if (code == 'A') {
        gathered.insert(token.substr(1));
      }
      if (std::isupper(code) != 0 && !vacuous) {
        tokens.push_back(code == 'C' ? "C" : token);
      }
    } else if (code == 'C') {
      inside = true;
    } else if (inside && code == 'p') {
      const bool has_gradient =
          recorded.label == "acc" ||
          std::ranges::any_of(group, [](const std::string& each) { return each[0] == 'R'; });
      for (const std::string& each : group) {
        if (has_gradient || each[0] != 'P') {
          (has_gradient ? tokens : callback).push_back(each);
        }
      }
      group.clear();
    } else if (inside && std::isupper(code) != 0) {
      group.push_back(token);
    } else if (code == 'c') {
      inside = false;
      tokens.emplace_back("C");
      tokens.insert(tokens.end(), callback.begin(), callback.end());
      callback.clear();
    } else if (std::isupper(code) != 0) {
      tokens.push_back(token);
    }
  }
  std::string out;
  for (const std::string& token : tokens) {
    out += (out.empty() ? "" : " ") + token;
  }
  return out;
}

bool engine_runs(const OrdersCase& recorded) {
  if (recorded.fsdp1()) {
    return recorded.use_orig_params && recorded.special.empty();
  }
  return recorded.api == "fsdp2" && recorded.world > 1 && recorded.error.empty() &&
         !std::set<std::string>{"groups", "no_unshard_emb", "branches"}.contains(recorded.special);
}

// checkpoint(fully_shard(block)): the checkpoint is a module around the unit.
bool encased(const OrdersCase& recorded) {
  return recorded.ac == "outside" || recorded.ac == "composable";
}

void set_dialect(const OrdersCase& recorded, nlohmann::json& plan) {
  plan["reshard_after_forward"] = recorded.raf;
  if (!recorded.fsdp1()) {
    return;
  }
  plan["dialect"] = "fsdp1";
  plan["limit_all_gathers"] = recorded.limit;
  plan["forward_prefetch"] = recorded.fp;
  plan["backward_prefetch"] = recorded.bp == "PRE"    ? "pre"
                              : recorded.bp == "POST" ? "post"
                                                      : "none";
  if (recorded.strategy == "SHARD_GRAD_OP" || recorded.strategy == "_HYBRID_SHARD_ZERO2") {
    plan["reshard_after_forward"] = false;
  }
}

nlohmann::json plan_of(const OrdersCase& recorded) {
  using nlohmann::json;
  const auto layer = [&](int64_t i) {
    return "layers." + std::to_string(i) + (encased(recorded) ? ".link" : "");
  };
  json plan{{"version", 1},
            {"mesh", {{"replicate", recorded.replicate}, {"shard", recorded.shard}}}};
  set_dialect(recorded, plan);
  if (!recorded.ac.empty()) {
    plan["activation_checkpointing"] = {"layers.*"};
  }
  plan["units"].push_back({{"modules", ""}});
  json forward = json::object(), backward = json::object();
  const int64_t back = recorded.bp.is_number() ? recorded.bp.get<int64_t>() : 0;
  for (int64_t i = 0; i < recorded.blocks; ++i) {
    json unit{{"modules", layer(i)}};
    if (recorded.special == "last_false" && i + 1 == recorded.blocks) {
      unit["reshard_after_forward"] = false;
    }
    plan["units"].push_back(unit);
    const int64_t depth = recorded.fsdp1() ? 0 : recorded.fp;
    for (int64_t j = i + 1; j <= std::min(i + depth, recorded.blocks - 1); ++j) {
      forward[layer(i)].push_back(layer(j));
    }
    for (int64_t j = i - 1; j >= std::max<int64_t>(i - back, 0); --j) {
      backward[layer(i)].push_back(layer(j));
    }
  }
  if (recorded.rootp) {
    forward[""] = {layer(0)};
    backward[""] = {layer(recorded.blocks - 1)};
  }
  if (recorded.special == "misprefetch") {
    backward[layer(0)] = {layer(recorded.blocks - 1)};
  }
  if (!forward.empty()) {
    plan["forward_prefetch"] = forward;
  }
  if (!backward.empty()) {
    plan["backward_prefetch"] = backward;
  }
  if (recorded.mixed) {
    plan["mixed_precision"] = {{"param_dtype", "bf16"}, {"reduce_dtype", "fp32"}};
  }
  return plan;
}

// What the program set with FSDP2's setters before all iterations.
void set(const OrdersCase& recorded, const Chain& model) {
  if (recorded.special == "set_raf_true" || recorded.special == "set_raf_false") {
    ShardedUnit(model.ptr())
        .set_reshard_after_forward(recorded.special == "set_raf_true", /*recurse=*/false);
  }
}
void set_flags(const OrdersCase& recorded, const std::string& label, const Chain& model) {
  const ShardedUnit root(model.ptr());
  const bool last = label != "acc" && label != "micro";
  if (recorded.special == "all_reduce_last") {
    root.set_requires_all_reduce(last);
  } else if (recorded.fsdp1() || label == "acc" || label == "sync") {  // no_sync() is a context
    root.set_requires_gradient_sync(label != "acc");
  }
  if (recorded.special == "is_last") {
    root.set_is_last_backward(last);
  }
  if (recorded.special == "keep") {
    root.set_reshard_after_backward(last);
  }
}

void run(const OrdersCase& recorded, const std::string& label, Chain& model) {
  const auto loss = [&] {
    return model(test::seeded({2, 5}, 7).requires_grad_(recorded.xgrad)).to(at::kFloat).sum();
  };
  set_flags(recorded, label, model);
  if (label == "eval") {
    const at::NoGradGuard no_grad;
    static_cast<void>(model(test::seeded({2, 5}, 7)));
  } else if (label == "fwd") {
    static_cast<void>(loss());
  } else if (label == "two") {
    const at::Tensor first = loss();
    (first + loss()).backward();
  } else {
    const at::Tensor value = loss();
    if (recorded.special == "manual_reshard") {
      ShardedUnit(model.ptr()).reshard();
      for (const test::Link& link : model->links) {
        ShardedUnit(link.ptr()).reshard();
      }
    }
    value.backward();
  }
}

bool freezes(const OrdersCase& recorded) {
  return !recorded.frozen.empty() || recorded.frozen_bias;
}

void freeze(const OrdersCase& recorded, Chain& model) {
  for (const int64_t link : recorded.frozen) {
    for (at::Tensor& parameter : model->links[static_cast<size_t>(link)]->parameters()) {
      parameter.set_requires_grad(false);
    }
  }
  for (test::Link& link : model->links) {
    for (auto& each : link->named_parameters()) {
      if (recorded.frozen_bias && each.key().ends_with("bias")) {
        each.value().set_requires_grad(false);
      }
    }
  }
}

// Counts the programs of each plan of iterations.
std::map<std::string, int> compare(const std::string& api,
                                   const std::string& layout,
                                   bool frozen = false) {
  std::map<std::string, int> programs;
  for (const OrdersCase& recorded :
       schedule::test::read_orders(std::string(SHARDLENS_TEST_DATA) + "/orders.json")) {
    if (recorded.api != api || freezes(recorded) != frozen || !engine_runs(recorded)) {
      continue;
    }
    SCOPED_TRACE(recorded.id);
    Events events(recorded.fsdp1());
    dist::WorldOptions options;
    options.backend = dist::BackendKind::kEmulated;
    options.world_size = static_cast<int>(recorded.world);
    const auto world = dist::World::join(options);
    Chain model = test::make_chain({.links = recorded.blocks,
                                    .root_owns = recorded.root,
                                    .calls = recorded.calls,
                                    .encased = encased(recorded)});
    model->unused = recorded.unused_loss.value_or(-1);
    freeze(recorded, model);
    nlohmann::json plan = plan_of(recorded);
    plan["layout"] = layout;
    const auto sharded =
        fully_shard(model.ptr(), plan::parse_plan(plan.dump(), "recorded"),
                    {.world = world.get(), .recorder = &events, .check_ledger = true});
    set(recorded, model);
    for (const OrdersCase::Iteration& iteration : recorded.iterations) {
      run(recorded, iteration.label, model);
      EXPECT_EQ(events.take(), normal(iteration, recorded.fsdp1())) << iteration.label;
      if (::testing::Test::HasFailure()) {
        return programs;
      }
      if (iteration.label == "sync" || iteration.label == "two") {
        sharded->zero_grad();
        sharded->optimizer_done();
      }
    }
    ++programs[recorded.plan];
    ++programs["all"];
  }
  return programs;
}

TEST(RecordedOrdersTest, EngineDoesWhatFsdp2Did) {
  for (const std::string layout : {"flat", "per_parameter"}) {
    SCOPED_TRACE(layout);
    std::map<std::string, int> programs = compare("fsdp2", layout);
    EXPECT_EQ(programs["all"], 476);
    for (const char* plan : {"sync2", "acc", "micro", "two", "eval", "fwd"}) {
      EXPECT_GT(programs[plan], 0) << plan;
    }
  }
}

TEST(RecordedOrdersTest, EngineDoesWhatFsdp1Did) {
  std::map<std::string, int> programs = compare("fsdp1", "flat");
  EXPECT_EQ(programs["all"], 423);
  for (const char* plan : {"sync2", "acc", "micro", "two", "eval", "fwd"}) {
    EXPECT_GT(programs[plan], 0) << plan;
  }
}

TEST(RecordedOrdersTest, FrozenParametersAndUnitsAsInFsdp2) {
  for (const std::string layout : {"flat", "per_parameter"}) {
    SCOPED_TRACE(layout);
    EXPECT_GT(compare("fsdp2", layout, /*frozen=*/true)["all"], 10);
  }
}

TEST(RecordedOrdersTest, FrozenParametersAndUnitsAsInFsdp1) {
  EXPECT_GT(compare("fsdp1", "flat", /*frozen=*/true)["all"], 10);
}

}  // namespace
}  // namespace shardlens::fsdp
