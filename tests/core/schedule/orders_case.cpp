#include "tests/core/schedule/orders_case.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace shardlens::schedule::test {
namespace {

using nlohmann::json;

OrdersCase parse(const json& row) {
  OrdersCase test;
  test.id = row.at("id");
  test.api = row.at("api");
  test.strategy = row.value("strategy", "");
  test.ac = row.value("ac", "");
  test.special = row.value("special", "");
  test.plan = row.value("plan", "sync3");
  test.error = row.value("error", "");
  test.blocks = row.at("N");
  test.world = row.value("W", 2);
  test.shard = test.world;
  if (row.contains("mesh")) {
    test.replicate = row["mesh"][0];
    test.shard = row["mesh"][1];
  }
  if (test.api == "replicate" || test.strategy == "NO_SHARD") {
    test.replicate = test.world;
    test.shard = 1;
  }
  test.root = row.at("root") == 1;
  test.xgrad = row.value("xgrad", 0) == 1;
  test.mixed = row.value("mp", 0) == 1;
  test.rootp = row.value("rootp", 0) == 1;
  test.limit = row.value("limit", 1) == 1;
  test.use_orig_params = row.value("orig", 1) == 1;
  test.raf = row.value("raf", json());
  test.bp = row.contains("bp") ? row["bp"] : test.fsdp1() ? json("PRE") : json();
  test.fp = row.value("fp", 0);
  if (row.contains("frozen")) {
    test.frozen_bias = row["frozen"].is_string();
    test.frozen =
        test.frozen_bias ? std::vector<int64_t>{} : row["frozen"].get<std::vector<int64_t>>();
  }
  for (int64_t i = 0; i < test.blocks; ++i) {
    test.calls.push_back(i);
  }
  test.calls = row.value("calls", test.calls);
  if (row.contains("unused_loss")) {
    test.unused_loss = row["unused_loss"].get<int64_t>();
  }
  for (const json& it : row.at("its")) {
    const std::string events = it.at(1);
    if (events.starts_with("=")) {
      OrdersCase::Iteration same = test.iterations.at(std::stoul(events.substr(1)));
      same.label = it.at(0);
      test.iterations.push_back(same);
    } else {
      test.iterations.push_back({it.at(0), events, it.at(2).get<std::vector<int64_t>>()});
    }
  }
  test.sizes = row.at("sizes");
  return test;
}

plan::Reshard reshard_of(const json& raf) {
  if (raf.is_boolean()) {
    return {raf.get<bool>() ? plan::Reshard::Kind::kYes : plan::Reshard::Kind::kNo, 0};
  }
  if (raf.is_number()) {
    return {plan::Reshard::Kind::kSubMesh, raf.get<int64_t>()};
  }
  return {};
}

plan::Reshard reshard_of_strategy(const std::string& strategy) {
  const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "_HYBRID_SHARD_ZERO2";
  return {keeps ? plan::Reshard::Kind::kNo : plan::Reshard::Kind::kYes, 0};
}

// Blocks are units 1 to N, so block i is unit i + 1.
void add_prefetch_lists(const OrdersCase& test, std::vector<UnitSpec>& specs) {
  const int64_t last = test.blocks - 1;
  const int64_t back = test.bp.is_number() ? test.bp.get<int64_t>() : 0;
  for (int64_t i = 0; i < test.blocks; ++i) {
    std::vector<UnitId> forward, backward;
    for (int64_t j = i + 1; j <= std::min(i + test.fp, last); ++j) {
      forward.push_back(static_cast<UnitId>(j + 1));
    }
    for (int64_t j = i - 1; j >= std::max<int64_t>(i - back, 0); --j) {
      backward.push_back(static_cast<UnitId>(j + 1));
    }
    if (!forward.empty()) {
      specs[i + 1].forward_prefetch = forward;
    }
    if (!backward.empty()) {
      specs[i + 1].backward_prefetch = backward;
    }
  }
  if (test.rootp) {
    specs[0].forward_prefetch = {{1}};
    specs[0].backward_prefetch = {{static_cast<UnitId>(test.blocks)}};
  }
  if (test.special == "misprefetch") {
    specs[1].backward_prefetch = {{static_cast<UnitId>(test.blocks)}};
  }
}

}  // namespace

std::vector<OrdersCase> read_orders(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    throw std::runtime_error("cannot read " + path);
  }
  std::vector<OrdersCase> cases;
  const json document = json::parse(in);
  for (const json& row : document.at("cases")) {
    cases.push_back(parse(row));
  }
  return cases;
}

std::vector<OrdersUnit> units_of(const OrdersCase& test) {
  const std::vector<std::vector<int64_t>> linear{{5, 5}, {5}};
  const std::vector<std::vector<int64_t>> block{{7, 5}, {7}, {5, 7}, {5}};
  const auto twice = [](std::vector<std::vector<int64_t>> shapes) {
    const auto copy = shapes;
    shapes.insert(shapes.end(), copy.begin(), copy.end());
    return shapes;
  };
  if (test.special == "groups" || test.special == "no_unshard_emb") {
    return {{"r", {}},
            {"emb", linear},
            {"norm+out", twice(linear), false, 2},
            {"0", block},
            {"1+2", twice(block), false, 2},
            {"3+4", twice(block), false, 2}};
  }
  std::vector<OrdersUnit> units{{"r", {}}};
  if (test.special == "branches") {
    for (const char* name : {"0", "1", "2"}) {
      units.push_back({name, linear});
    }
    return units;
  }
  if (test.root) {
    units[0].shapes = twice(linear);
  }
  for (int64_t i = 0; i < test.blocks; ++i) {
    units.push_back(
        {std::to_string(i), block, std::ranges::find(test.frozen, i) != test.frozen.end()});
  }
  return units;
}

std::vector<UnitSpec> specs_of(const OrdersCase& test,
                               const std::vector<OrdersUnit>& units,
                               plan::Layout layout) {
  const bool packs = layout == plan::Layout::kPerParameter && test.shard > 1;
  std::vector<UnitSpec> specs;
  for (const OrdersUnit& unit : units) {
    UnitSpec spec;
    spec.name = unit.name;
    spec.parent = specs.empty() ? kNoUnit : 0;
    spec.modules = static_cast<uint32_t>(unit.modules);
    spec.has_parameters = !unit.shapes.empty();
    spec.trainable = !unit.frozen;
    spec.copy_in = packs || test.mixed;
    spec.copy_out = packs;
    spec.reduce_cast = test.mixed;
    spec.reduce_copy_in = packs || test.mixed;
    spec.reshard_after_forward =
        test.fsdp1() ? reshard_of_strategy(test.strategy) : reshard_of(test.raf);
    if (unit.name == "norm+out") {
      spec.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
    }
    if (spec.reshard_after_forward.kind == plan::Reshard::Kind::kSubMesh) {
      spec.kept = plan::kReplicateGroup + 1;
    }
    specs.push_back(spec);
  }
  if (test.special == "last_false") {
    specs.back().reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  }
  if (!test.fsdp1() && test.special != "groups" && test.special != "no_unshard_emb" &&
      test.special != "branches") {
    add_prefetch_lists(test, specs);
  }
  return specs;
}

ScheduleOptions options_of(const OrdersCase& test, plan::Layout layout) {
  ScheduleOptions options;
  options.dialect = test.fsdp1() ? plan::Dialect::kFsdp1 : plan::Dialect::kFsdp2;
  options.layout = layout;
  options.shard = test.shard;
  options.replicate = test.replicate;
  options.limit_all_gathers = test.limit;
  options.use_orig_params = test.use_orig_params;
  if (test.fsdp1()) {
    options.forward_prefetch = test.fp;
    options.backward_prefetch = test.bp == "PRE"    ? plan::BackwardPrefetch::kPre
                                : test.bp == "POST" ? plan::BackwardPrefetch::kPost
                                                    : plan::BackwardPrefetch::kNone;
  }
  return options;
}

std::vector<std::string> tokens_of(const std::string& events) {
  std::istringstream in(events);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace shardlens::schedule::test
