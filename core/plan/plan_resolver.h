#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// The passes of resolve(). Each throws an InputError that names the position in the plan file.
//
// resolve_modules.cpp  modules and parameters that the plan's globs match
// resolve_groups.cpp   groups of the units, and how ranks divide the parameters
// resolve.cpp          mesh, units and the parameters that each unit owns
class Resolver {
 public:
  // `plan` and `tree` must outlive the resolver.
  Resolver(const Plan& plan, const ModuleTree& tree, int64_t world_size);

  ResolvedPlan run();

  // For a plan with the same units and `dtype` as `resolved`: run_settings() resolves only the
  // other settings.
  Resolver(Plan plan, ResolvedPlan resolved);
  ResolvedPlan run_settings();

 private:
  static constexpr uint32_t kNone = 0xffffffffU;

  // The modules of a future unit, and the entry that names them (-1: none).
  struct Group {
    int32_t entry;
    std::vector<uint32_t> modules;
  };

  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const;

  [[nodiscard]] static std::string shown(std::string_view fqn);

  void set_mesh();
  void set_dtype();
  void set_expert_mesh(int64_t replica);

  // Modules that `glob` (or the wrap policy in its place) matches, in pre-order; fails if there are
  // none.
  [[nodiscard]] std::vector<uint32_t> matches(const std::string& glob,
                                              const std::string& pointer) const;
  [[nodiscard]] std::vector<uint32_t> chosen_by(const std::string& policy,
                                                const std::string& pointer) const;

  // Parameters with any name that a glob of the plan's list `key` matches.
  [[nodiscard]] std::vector<uint32_t> parameters_of_glob(const std::string& glob,
                                                         const std::string& pointer) const;
  [[nodiscard]] std::vector<uint32_t> matching_parameters(const std::vector<std::string>& globs,
                                                          const std::string& key) const;
  void find_ignored();
  void find_frozen();

  // Fills groups_: the modules of each future unit, in the order of the plan's entries.
  void match_entries();

  void require_forward(uint32_t module, const std::string& pointer) const;
  // Assigns the module to the entry. Returns false if the entry has it already; fails if another
  // entry has it.
  bool claim(uint32_t module, uint32_t entry, const std::string& pointer);

  // The group without modules that are inside another module of the group: of a list, PyTorch keeps
  // only the root modules.
  [[nodiscard]] std::vector<uint32_t> outermost(const std::vector<uint32_t>& group) const;

  void make_units();

  [[nodiscard]] Unit make_unit(const Group& group) const;
  void take_settings(Unit& unit) const;
  void settle_units();

  // The innermost unit that contains every module of `unit`.
  [[nodiscard]] UnitId enclosing_unit(const Unit& unit) const;

  void own_parameters();
  void own_subtree(UnitId id, uint32_t module, std::vector<uint32_t>& first_owner);

  // Whether the unit's parameters are in one group on the dense mesh, sharded along dimension 0.
  [[nodiscard]] bool is_usual(const Unit& unit) const;
  // The group in the plan of a unit's parameter, and its position there.
  [[nodiscard]] const ParameterGroupEntry& group_of(const Unit& unit, uint32_t parameter) const;
  [[nodiscard]] std::string place_of(const Unit& unit, const ParameterGroupEntry& group) const;
  // Makes a Unit for each group of a unit's parameters, in the order of their first parameters.
  void divide_units();

  void set_groups();
  void settle_sub_mesh(Unit& unit);
  void place_parameters();
  void divide_modules();
  void divide_module(uint32_t module, const TensorStyle& style, const std::string& pointer);
  void place_in_group(const Unit& unit, uint32_t parameter);
  void cut(uint32_t parameter, mesh::GroupId group, int64_t dim, const std::string& pointer);
  void check_unshard_in_backward() const;

  void find_checkpointed();

  const Plan& plan_;
  const ModuleTree& tree_;
  ResolvedPlan out_;
  std::unordered_map<std::string_view, uint32_t> module_of_;  // by FQN
  std::vector<bool> ignored_module_, ignored_parameter_;
  std::vector<uint32_t> entry_of_;  // by module; kNone: in no entry
  std::vector<Group> groups_;
  std::vector<UnitId> unit_of_;  // innermost unit that contains each module
};

}  // namespace shardlens::plan
