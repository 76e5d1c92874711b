#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// The passes behind resolve(), each of which fails with an InputError that names its place in the
// plan file.
//
// resolve_modules.cpp   which modules and parameters the plan's globs mean
// resolve.cpp           mesh, units and the parameters that each owns
// resolve_prefetch.cpp  which units each unit prefetches
class Resolver {
 public:
  // Both must outlive the resolver.
  Resolver(const Plan& plan, const ModuleTree& tree, int64_t world_size);

  ResolvedPlan run();

  // For a plan with the units of `resolved`: its other settings alone are looked at again.
  Resolver(const Plan& plan, ResolvedPlan resolved);
  ResolvedPlan run_settings();

 private:
  static constexpr uint32_t kNone = 0xffffffffU;

  // The modules of a unit to be, and the entry that named them (-1: none).
  struct Group {
    int32_t entry;
    std::vector<uint32_t> modules;
  };

  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const;

  [[nodiscard]] static std::string shown(std::string_view fqn);

  void set_mesh();

  // Modules that `glob`, or a wrap policy in its place, matches, pre-order; fails when there are
  // none.
  [[nodiscard]] std::vector<uint32_t> matches(const std::string& glob,
                                              const std::string& pointer) const;
  [[nodiscard]] std::vector<uint32_t> chosen_by(const std::string& policy,
                                                const std::string& pointer) const;

  // Parameters that the plan's list `key` of globs matches, by any of their names.
  [[nodiscard]] std::vector<uint32_t> matching_parameters(const std::vector<std::string>& globs,
                                                          const std::string& key) const;
  void find_ignored();
  void find_frozen();

  // Fills groups_: the modules of each unit to be, in the order in which the entry names them.
  void match_entries();

  // False if the same entry has it already; fails if another entry has.
  void require_forward(uint32_t module, const std::string& pointer) const;
  bool claim(uint32_t module, uint32_t entry, const std::string& pointer);

  // Without modules that lie inside another of the group, as PyTorch keeps only root modules of a
  // list.
  [[nodiscard]] std::vector<uint32_t> outermost(const std::vector<uint32_t>& group) const;

  void make_units();

  [[nodiscard]] Unit make_unit(const Group& group) const;
  void take_settings(Unit& unit) const;
  void settle_units();

  // The innermost unit around every module of `unit`.
  [[nodiscard]] UnitId enclosing_unit(const Unit& unit) const;

  void own_parameters();
  void own_subtree(UnitId id, uint32_t module, std::vector<uint32_t>& first_owner);

  void check_sub_meshes();
  void check_unshard_in_backward() const;

  [[nodiscard]] UnitId unit_named(const std::string& name, const std::string& pointer) const;

  void set_prefetch_lists(const std::string& key,
                          const PrefetchLists& lists,
                          std::vector<UnitId> Unit::*list,
                          bool Unit::*has_list);

  // fsdp2 has explicit lists only; fsdp1 prefetches by itself, from the order it saw in the step
  // before.
  void expand_forward_depth();

  void find_checkpointed();

  const Plan& plan_;
  const ModuleTree& tree_;
  ResolvedPlan out_;
  std::unordered_map<std::string_view, uint32_t> module_of_;  // by FQN
  std::vector<bool> ignored_module_, ignored_parameter_;
  std::vector<uint32_t> entry_of_;  // of each module; kNone
  std::vector<Group> groups_;
  std::vector<UnitId> unit_of_;  // nearest unit around each module
};

}  // namespace shardlens::plan
