#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/module_states.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/apply/unit_setup.h"
#include "core/module/tree_of.h"
#include "core/plan/resolve.h"
#include "core/tree/glob.h"
#include "core/tree/wrap_policy.h"

namespace shardlens::fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

// Checks the settings that must be the same for all units that share a schedule.
void require_alike(const plan::Plan& root, const plan::Plan& unit, const std::string& fqn) {
  const struct {
    const char* key;
    bool alike;
  } settings[] = {
      {"mesh", root.mesh == unit.mesh},
      {"dialect", root.dialect == unit.dialect},
      {"layout", root.layout == unit.layout},
      {"views", root.views == unit.views},
      {"limit_all_gathers", root.limit_all_gathers == unit.limit_all_gathers},
      {"separate_reduce_scatter_group",
       root.separate_reduce_scatter_group == unit.separate_reduce_scatter_group},
      {"reduce_scatter_unused_params",
       root.reduce_scatter_unused_params == unit.reduce_scatter_unused_params},
      {"reduce_scatter_max_input_buffers",
       root.reduce_scatter_max_input_buffers == unit.reduce_scatter_max_input_buffers},
      {"backward_finalization", root.backward_finalization == unit.backward_finalization},
      {"backward_prefetch", root.backward_prefetch == unit.backward_prefetch}};
  for (const auto& setting : settings) {
    if (!setting.alike) {
      throw UsageError(
          fmt::format("fully_shard: expected one homogeneous value for {} below one root; unit "
                      "'{}' has another value than the root",
                      setting.key, fqn));
    }
  }
}

plan::UnitEntry entry_of(const plan::Plan& settings) {
  plan::UnitEntry entry;
  entry.reshard_after_forward = settings.reshard_after_forward;
  entry.reshard_after_backward = settings.reshard_after_backward;
  entry.requires_all_reduce = settings.requires_all_reduce;
  entry.keep_unsharded_storage = settings.keep_unsharded_storage;
  entry.mixed_precision = settings.mixed_precision;
  entry.cpu_offload = settings.cpu_offload;
  entry.optimizer_in_backward = settings.optimizer_in_backward;
  entry.gradient_divide_factor = settings.gradient_divide_factor;
  return entry;
}

// Finds the parts of a model that an API was already applied to; see Parts.
class PartFinder {
 public:
  explicit PartFinder(const plan::Plan& plan) : given_(plan) { found_.plan = plan; }

  Parts run(const ModulePtr& model) && {
    expand_ = given_.units.empty() && !is_fully_sharded(*model);
    if (expand_) {
      add({""}, {}, nullptr);
    }
    visit(model, "", nullptr);
    for (const auto& [state, entry] : entry_of_) {
      const size_t modules = state->application()->modules.size();
      if (found_.plan.units[entry].globs.size() != modules) {
        throw UsageError(
            fmt::format("fully_shard: unit '{}' has {} modules, of which {} are below this root",
                        fmt::join(found_.plan.units[entry].globs, ", "), modules,
                        found_.plan.units[entry].globs.size()));
      }
    }
    const bool none = std::all_of(found_.states.begin(), found_.states.end(),
                                  [](const auto& state) { return state == nullptr; });
    return none && !replicated_ ? Parts{given_, {}} : std::move(found_);
  }

 private:
  // Whether the plan has an entry for a module that an API was already applied to.
  [[nodiscard]] bool named(const torch::nn::Module& module, const std::string& fqn) const {
    const auto means = [&](const std::string& glob) {
      if (!plan::is_wrap_policy(glob)) {
        return plan::glob_matches(glob, fqn);
      }
      if (glob.starts_with("size:")) {
        throw UsageError(fmt::format(
            "fully_shard: '{}' cannot choose the units of a model with a part, '{}', that has its "
            "own API already; name the units by globs or classes",
            glob, fqn));
      }
      return glob == "class:" + composable::class_name(module);
    };
    return std::any_of(given_.units.begin(), given_.units.end(),
                       [&](const auto& entry) { return std::ranges::any_of(entry.globs, means); });
  }

  void add(std::vector<std::string> globs,
           plan::UnitEntry entry,
           std::shared_ptr<FsdpState> state) {
    entry.globs = std::move(globs);
    found_.plan.units.push_back(std::move(entry));
    found_.states.resize(found_.plan.units.size());
    found_.states.back() = std::move(state);
  }

  void add_part(const std::shared_ptr<FsdpState>& state, const std::string& fqn) {
    if (state->application() == nullptr) {
      throw UsageError("FSDP state has already been lazily initialized for " + fqn +
                       "; FSDP requires running forward through the root module first");
    }
    require_alike(given_, state->application()->settings, fqn);
    const auto [known, fresh] = entry_of_.emplace(state.get(), found_.plan.units.size());
    if (fresh) {
      add({fqn}, entry_of(state->application()->settings), state);
    } else {
      found_.plan.units[known->second].globs.push_back(fqn);
      found_.plan.units[known->second].grouped = true;
    }
  }

  void add_ignored(const FsdpState& around, const at::Tensor& parameter, const std::string& fqn) {
    const std::vector<at::Tensor>& ignored = around.application()->ignored;
    if (std::none_of(ignored.begin(), ignored.end(),
                     [&](const at::Tensor& each) { return each.is_same(parameter); })) {
      throw UsageError("fully_shard: parameter '" + fqn +
                       "' did not exist when its unit was sharded");
    }
    found_.plan.ignored_parameters.push_back(fqn);
  }

  // `around`: the part that contains the module, or null.
  void visit(const ModulePtr& module, const std::string& fqn, const FsdpState* around) {
    if (!composes_with_fsdp(*module)) {
      if (!named(*module, fqn)) {
        plan::UnitEntry entry;
        entry.api = plan::Api::kReplicate;
        add({fqn}, entry, nullptr);
        replicated_ = true;
      }
      return;
    }
    if (is_fully_sharded(*module) && !named(*module, fqn)) {
      const auto state = module_fsdp_state(*module);
      add_part(state, fqn);
      around = state.get();
    } else if (expand_ && !fqn.empty() &&
               dynamic_cast<const module::HookPoint*>(module.get()) != nullptr) {
      add({fqn}, {}, nullptr);
    }
    const std::string prefix = fqn.empty() ? "" : fqn + ".";
    for (const auto& each : module->named_parameters(/*recurse=*/false)) {
      if (around != nullptr && FsdpState::owner_of(each.value()) == nullptr) {
        add_ignored(*around, each.value(), prefix + each.key());
      }
    }
    for (const auto& child : module->named_children()) {
      visit(child.value(), prefix + child.key(), around);
    }
  }

  const plan::Plan& given_;
  bool expand_ = false;      // the plan has no units: every block and the root become units
  bool replicated_ = false;  // a replicated part was found
  Parts found_;
  std::unordered_map<const FsdpState*, size_t> entry_of_;
};

// Buffers of the modules and of all below them, without those of other APIs' modules.
void add_buffers(const std::vector<ModulePtr>& modules,
                 const std::function<bool(const torch::nn::Module&)>& taken,
                 std::vector<ModuleState>& states) {
  for (const ModulePtr& module : modules) {
    if (taken(*module)) {
      continue;
    }
    for (const auto& each : module->named_buffers(/*recurse=*/false)) {
      states.push_back({each.key(), each.value(), true});
    }
    add_buffers(module->children(), taken, states);
  }
}

}  // namespace

Parts parts_of(const ModulePtr& model, const plan::Plan& plan) {
  return PartFinder(plan).run(model);
}

void init_root(const FsdpState& state) {
  const FsdpState::Application application = *state.application();
  std::vector<std::string> classes;
  for (const auto& module : application.modules) {
    const ModulePtr alive = module.lock();
    classes.push_back(alive == nullptr ? "a destroyed module" : composable::class_name(*alive));
  }
  if (classes.size() > 1) {
    throw UsageError(
        fmt::format("FSDP requires a single root module but got [{}]", fmt::join(classes, ", ")));
  }
  plan::Plan plan = application.settings;
  plan.units.clear();
  plan.ignored_modules.clear();  // relative to the unit; parts_of() finds the ignored parameters
  plan.ignored_parameters.clear();
  plan.frozen_parameters.clear();  // frozen already
  static_cast<void>(join_parts(application.modules.front().lock(), plan, application.options));
}

std::shared_ptr<ShardedModel> lazy_init(const ModulePtr& module) {
  const auto state = is_fully_sharded(*module) ? module_fsdp_state(*module) : nullptr;
  if (state != nullptr && state->application() != nullptr) {
    init_root(*state);
  }
  auto root = state == nullptr ? nullptr : state->root();
  if (root == nullptr || !state->is_root()) {
    throw UsageError("lazy_init: module " + composable::described(*module, "") +
                     (root == nullptr
                          ? " is not sharded: apply fully_shard first"
                          : " is a unit of another root: " + root->plan().units[0].fqn));
  }
  return root;
}

void fully_shard_unit(const std::vector<ModulePtr>& modules,
                      const plan::Plan& settings,
                      const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "fully_shard needs a world");
  if (modules.empty() || std::count(modules.begin(), modules.end(), nullptr) > 0) {
    throw UsageError("fully_shard: expected at least one module, and no null pointer");
  }
  const composable::Modules roots = composable::root_modules(modules);
  for (const ModulePtr& module : roots) {
    require_shardable(module, "");
  }
  const auto taken = [](const torch::nn::Module& module) {
    return is_fully_sharded(module) || !composes_with_fsdp(module);
  };
  const module::Subtree subtree = module::subtree_of(roots, taken);
  plan::Plan plan = settings;
  plan.units.assign(1, {});
  plan.units.front().globs = {roots.size() == 1 ? "" : "*"};
  plan.units.front().grouped = roots.size() > 1;
  plan::ResolvedPlan resolved = plan::resolve(plan, subtree.tree, options.world->size());
  plan::require_engine_support(resolved);
  module::share_frozen(resolved.tree, subtree.parameters);

  const auto state = std::make_shared<FsdpState>();
  const auto id = static_cast<UnitId>(resolved.units.size() - 1);
  require_parameters(resolved, id, subtree.parameters, options);
  std::vector<ModuleState> to_prepare;
  for (const uint32_t index : resolved.units[id].parameters) {
    to_prepare.push_back({resolved.tree.parameters[index].fqn, subtree.parameters[index]});
  }
  add_buffers(roots, taken, to_prepare);
  prepare_module_states(to_prepare, options);
  shard_unit(state, resolved, id, roots, subtree.parameters, options);
  std::vector<at::Tensor> ignored;
  std::unordered_set<const c10::TensorImpl*> left_out;
  for (const uint32_t parameter : resolved.ignored_parameters) {
    ignored.push_back(subtree.parameters[parameter]);
    left_out.insert(ignored.back().unsafeGetTensorImpl());
  }
  state->set_application({{roots.begin(), roots.end()}, settings, options, std::move(ignored)});
  std::vector<ModulePtr> stack(roots);
  while (!stack.empty()) {
    const ModulePtr module = std::move(stack.back());
    stack.pop_back();
    if (composable::has_module_state(*module)) {
      continue;  // a shared module that was visited already
    }
    composable::insert_module_state(module, state);
    for (const auto& child : module->children()) {
      if (!taken(*child) && !is_ignored(*child, left_out)) {
        stack.push_back(child);
      }
    }
  }
  for (const ModulePtr& module : roots) {
    mark_managed(module);
  }
  register_hooks(state, roots);
}

}  // namespace shardlens::fsdp
