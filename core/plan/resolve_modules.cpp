#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/plan/plan_resolver.h"
#include "core/tree/glob.h"
#include "core/tree/wrap_policy.h"

namespace shardlens::plan {
namespace {

// A suggestion for a glob without match: the nearest FQN, or FQN with its numbers replaced by `*`.
template <typename Named>
std::string nearest_glob(std::string_view glob, const std::vector<Named>& named) {
  std::vector<std::string> fqns;
  for (const Named& each : named) {
    fqns.push_back(each.fqn);
  }
  std::vector<std::string> candidates = fqns;
  std::set<std::string> generic;
  for (const std::string& fqn : fqns) {
    std::string text;
    bool number = true;
    std::string component;
    for (size_t i = 0; i <= fqn.size(); ++i) {
      if (i == fqn.size() || fqn[i] == '.') {
        text += (number && !component.empty() ? "*" : component) + (i == fqn.size() ? "" : ".");
        component.clear();
        number = true;
      } else {
        component += fqn[i];
        number = number && fqn[i] >= '0' && fqn[i] <= '9';
      }
    }
    generic.insert(text);
  }
  candidates.insert(candidates.end(), generic.begin(), generic.end());
  return suggestion(glob, candidates);
}

}  // namespace

std::vector<uint32_t> Resolver::matches(const std::string& glob, const std::string& pointer) const {
  // A module may be named like a glob or a policy, so a name takes precedence.
  if (const auto named = module_of_.find(glob); named != module_of_.end()) {
    return {named->second};
  }
  if (is_wrap_policy(glob)) {
    return chosen_by(glob, pointer);
  }
  std::vector<uint32_t> found;
  if (has_wildcard(glob)) {
    for (uint32_t i = 0; i < tree_.modules.size(); ++i) {
      if (!is_container(tree_.modules[i]) && glob_matches(glob, tree_.modules[i].fqn)) {
        found.push_back(i);
      }
    }
  }
  if (found.empty()) {
    fail(pointer,
         fmt::format(
             "glob '{}' matches no module; expected FQNs such as '{}'{}", glob,
             tree_.modules[tree_.blocks.empty() ? tree_.modules.size() - 1 : tree_.blocks[0]].fqn,
             nearest_glob(glob, tree_.modules)));
  }
  return found;
}

std::vector<uint32_t> Resolver::chosen_by(const std::string& policy,
                                          const std::string& pointer) const {
  std::vector<uint32_t> found = modules_of_policy(policy, tree_, ignored_parameter_);
  if (found.empty()) {
    std::set<std::string> classes;
    for (const Module& module : tree_.modules) {
      classes.insert("class:" + module.type);
    }
    const bool by_class = policy.starts_with("class:");
    fail(pointer, fmt::format("'{}' {}{}", policy,
                              by_class ? "matches no module: no module has this class"
                                       : "matches no module: only the root is that large",
                              by_class ? suggestion(policy, std::vector<std::string>(
                                                                classes.begin(), classes.end()))
                                       : ""));
  }
  return found;
}

std::vector<uint32_t> Resolver::parameters_of_glob(const std::string& glob,
                                                   const std::string& pointer) const {
  std::vector<uint32_t> found;
  const auto matched = [&glob](const std::string& fqn) { return glob_matches(glob, fqn); };
  for (uint32_t k = 0; k < tree_.parameters.size(); ++k) {
    const Parameter& parameter = tree_.parameters[k];
    if (matched(parameter.fqn) || std::ranges::any_of(parameter.aliases, matched)) {
      found.push_back(k);
    }
  }
  if (found.empty()) {
    fail(pointer, fmt::format("glob '{}' matches no parameter{}", glob,
                              nearest_glob(glob, tree_.parameters)));
  }
  return found;
}

std::vector<uint32_t> Resolver::matching_parameters(const std::vector<std::string>& globs,
                                                    const std::string& key) const {
  std::vector<uint32_t> found;
  for (size_t i = 0; i < globs.size(); ++i) {
    const std::vector<uint32_t> more = parameters_of_glob(globs[i], fmt::format("/{}/{}", key, i));
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

void Resolver::find_frozen() {
  for (const uint32_t parameter :
       matching_parameters(plan_.frozen_parameters, "frozen_parameters")) {
    out_.tree.parameters[parameter].requires_grad = false;
  }
}

void Resolver::find_ignored() {
  ignored_module_.assign(tree_.modules.size(), false);
  ignored_parameter_.assign(tree_.parameters.size(), false);
  for (size_t i = 0; i < plan_.ignored_modules.size(); ++i) {
    for (const uint32_t module :
         matches(plan_.ignored_modules[i], fmt::format("/ignored_modules/{}", i))) {
      ignored_module_[module] = true;
    }
  }
  for (uint32_t i = 0; i < tree_.modules.size(); ++i) {
    const Module& module = tree_.modules[i];
    ignored_module_[i] = ignored_module_[i] || ignored_module_[module.parent];
    for (const uint32_t parameter : module.parameters) {
      ignored_parameter_[parameter] = ignored_parameter_[parameter] || ignored_module_[i];
    }
  }
  for (const uint32_t parameter :
       matching_parameters(plan_.ignored_parameters, "ignored_parameters")) {
    ignored_parameter_[parameter] = true;
  }
  for (uint32_t k = 0; k < tree_.parameters.size(); ++k) {
    if (ignored_parameter_[k]) {
      out_.ignored_parameters.push_back(k);
    }
  }
}

void Resolver::match_entries() {
  entry_of_.assign(tree_.modules.size(), kNone);
  if (plan_.units.empty()) {
    for (const uint32_t block : tree_.blocks) {
      groups_.push_back({-1, {block}});
    }
    groups_.push_back({-1, {0}});
    return;
  }
  for (size_t e = 0; e < plan_.units.size(); ++e) {
    const UnitEntry& entry = plan_.units[e];
    std::vector<uint32_t> group;
    for (size_t g = 0; g < entry.globs.size(); ++g) {
      const std::string pointer = entry.grouped ? fmt::format("/units/{}/modules/{}", e, g)
                                                : fmt::format("/units/{}/modules", e);
      for (const uint32_t module : matches(entry.globs[g], pointer)) {
        if (claim(module, static_cast<uint32_t>(e), pointer)) {
          group.push_back(module);
        }
      }
    }
    if (entry.grouped) {
      groups_.push_back({static_cast<int32_t>(e), outermost(group)});
    } else {
      for (const uint32_t module : group) {
        groups_.push_back({static_cast<int32_t>(e), {module}});
      }
    }
  }
}

void Resolver::require_forward(uint32_t module, const std::string& pointer) const {
  const Module& m = tree_.modules[module];
  if (is_container(m)) {
    fail(pointer, fmt::format("module {} is a {} and has no forward; expected its children, '{}.*'",
                              shown(m.fqn), m.type, m.fqn));
  }
}

bool Resolver::claim(uint32_t module, uint32_t entry, const std::string& pointer) {
  const Module& m = tree_.modules[module];
  if (entry_of_[module] == entry) {
    return false;
  }
  if (entry_of_[module] != kNone) {
    fail(pointer,
         fmt::format("module {} is matched by two entries, this one and units/{}; expected one",
                     shown(m.fqn), entry_of_[module]));
  }
  require_forward(module, pointer);
  if (ignored_module_[module]) {
    fail(pointer,
         fmt::format("module {} is in ignored_modules too; expected one of the two", shown(m.fqn)));
  }
  entry_of_[module] = entry;
  return true;
}

std::vector<uint32_t> Resolver::outermost(const std::vector<uint32_t>& group) const {
  const std::set<uint32_t> members(group.begin(), group.end());
  std::vector<uint32_t> out;
  for (const uint32_t module : group) {
    bool inside = false;
    for (uint32_t at = module; at != 0 && !inside;) {
      at = tree_.modules[at].parent;
      inside = members.contains(at);
    }
    if (!inside) {
      out.push_back(module);
    }
  }
  return out;
}

void Resolver::find_checkpointed() {
  std::set<uint32_t> found;
  for (size_t i = 0; i < plan_.activation_checkpointing.size(); ++i) {
    const std::string pointer = fmt::format("/activation_checkpointing/{}", i);
    for (const uint32_t module : matches(plan_.activation_checkpointing[i], pointer)) {
      require_forward(module, pointer);
      found.insert(module);
    }
  }
  out_.checkpointed_modules.assign(found.begin(), found.end());
}

}  // namespace shardlens::plan
