#include "core/plan/accelerate_units.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shardlens::plan {
namespace {

// Limits of a pattern, so that matching takes neither long nor a deep stack.
constexpr size_t kLongestPattern = 512;
constexpr int64_t kMostRepeats = 1000;  // of all its counts, as {3} or {2,5}, multiplied

// Refuses what Python and C++ read in different ways.
void require_readable(const JsonNode& node, const std::string& pattern) {
  constexpr std::string_view kEscapes = "dDwWsSbB";
  int64_t repeats = 1;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const auto next = static_cast<unsigned char>(i + 1 < pattern.size() ? pattern[i + 1] : ' ');
    if (pattern[i] == '\\') {
      if (std::isalnum(next) != 0 && kEscapes.find(static_cast<char>(next)) == kEscapes.npos) {
        node.fail(
            fmt::format("the regular expression's \\{} is not read here; write it with "
                        "characters, classes, '*', '+', '?', '|' and groups",
                        static_cast<char>(next)));
      }
      ++i;
    } else if (pattern[i] == '{') {
      int64_t most = 0, number = 0;
      for (size_t k = i + 1; k < pattern.size() && pattern[k] != '}'; ++k) {
        const bool digit = std::isdigit(static_cast<unsigned char>(pattern[k])) != 0;
        number = digit ? std::min(kMostRepeats + 1, number * 10 + (pattern[k] - '0')) : 0;
        most = std::max(most, number);
      }
      repeats *= std::max<int64_t>(1, most);
      if (repeats > kMostRepeats) {
        node.fail(
            fmt::format("the regular expression repeats a part more than {} times", kMostRepeats));
      }
    }
  }
}

std::regex compiled(const JsonNode& node) {
  const std::string pattern = node.string();
  if (pattern.size() > kLongestPattern) {
    node.fail(fmt::format("expected a regular expression of at most {} characters, found {}",
                          kLongestPattern, pattern.size()));
  }
  require_readable(node, pattern);
  try {
    // Without backtracking, whose time can grow exponentially.
    return std::regex(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error&) {
    node.fail(
        fmt::format("expected a regular expression of characters, classes, '*', '+', '?', "
                    "'|' and groups, found {}",
                    node.shown()));
  }
}

bool is_list_of_modules(const Module& module) {
  return module.type == "ModuleList" || module.type == "ModuleDict";
}

int64_t numel_below(const ModuleTree& tree, uint32_t module) {
  int64_t out = 0;
  for (const uint32_t parameter : tree.subtree_parameters(module)) {
    out += tree.parameters[parameter].numel;
  }
  return out;
}

// The module with everything but the head: a child of the root.
const Module* base_of(const ModuleTree& tree) {
  for (const char* name : {"model", "transformer"}) {
    if (const Module* found = tree.find(name)) {
      return found;
    }
  }
  return nullptr;
}

// The last norm among the children of the base.
const Module* final_norm(const ModuleTree& tree) {
  const Module* base = base_of(tree);
  const Module* found = nullptr;
  for (const uint32_t child : base == nullptr ? std::vector<uint32_t>{} : base->children) {
    if (tree.modules[child].type.find("Norm") != std::string::npos) {
      found = &tree.modules[child];
    }
  }
  return found;
}

// The owner of the first parameter, if it is an embedding.
const Module* input_embedding(const ModuleTree& tree) {
  if (tree.parameters.empty()) {
    return nullptr;
  }
  const Module& owner = tree.modules[tree.parameters.front().module];
  return owner.type.ends_with("Embedding") ? &owner : nullptr;
}

bool is_unit(const std::vector<UnitEntry>& units, const Module& module) {
  return std::ranges::any_of(units, [&module](const UnitEntry& unit) {
    return std::ranges::any_of(unit.globs, [&module](const std::string& glob) {
      return glob == module.fqn || glob == "class:" + module.type;
    });
  });
}

}  // namespace

UnitEntry unit_of(std::vector<std::string> globs) {
  UnitEntry out;
  out.globs = std::move(globs);
  return out;
}

std::vector<std::string> classes_of_blocks(const ModuleTree& tree) {
  std::vector<std::string> out;
  for (const uint32_t block : tree.blocks) {
    const std::string& type = tree.modules[block].type;
    if (std::ranges::find(out, type) == out.end()) {
      out.push_back(type);
    }
  }
  return out;
}

void require_class(const JsonNode& node, const ModuleTree& tree, const std::string& name) {
  std::vector<std::string> known;
  for (const Module& module : tree.modules) {
    if (!is_list_of_modules(module) && std::ranges::find(known, module.type) == known.end()) {
      known.push_back(module.type);
    }
  }
  if (std::ranges::find(known, name) == known.end()) {
    node.fail(fmt::format("the model has no module of class '{}'; its blocks are of class {}{}",
                          name, quoted_list(classes_of_blocks(tree)), suggestion(name, known)));
  }
}

std::vector<std::string> modules_of_classes(const ModuleTree& tree,
                                            const std::vector<std::string>& classes) {
  const auto chosen = [&](uint32_t index) {
    return std::ranges::find(classes, tree.modules[index].type) != classes.end();
  };
  std::vector<std::string> out;
  for (uint32_t i = 0; i < tree.modules.size(); ++i) {
    if (!chosen(i)) {
      continue;
    }
    const Module& parent = tree.modules[tree.modules[i].parent];
    const bool all = is_list_of_modules(parent) && std::ranges::all_of(parent.children, chosen);
    const std::string glob = all ? parent.fqn + ".*" : tree.modules[i].fqn;
    if (std::ranges::find(out, glob) == out.end()) {
      out.push_back(glob);
    }
  }
  return out;
}

std::vector<UnitEntry> units_above(const JsonNode& node, const ModuleTree& tree, int64_t size) {
  std::vector<UnitEntry> out;
  for (uint32_t i = 1; i < tree.modules.size(); ++i) {
    const Module& module = tree.modules[i];
    if (const int64_t numel = numel_below(tree, i); numel > size) {
      if (is_list_of_modules(module)) {
        node.fail(
            fmt::format("SIZE_BASED_WRAP of version 2 shards every module with more than {} "
                        "parameters; {} is a {} with {}, which fully_shard refuses; expected "
                        "TRANSFORMER_BASED_WRAP",
                        size, module.fqn, module.type, numel));
      }
      out.push_back(unit_of({module.fqn}));
    }
  }
  return out;
}

std::vector<std::string> modules_of_pattern(const JsonNode& node, const ModuleTree& tree) {
  const std::regex pattern = compiled(node);
  std::vector<bool> ignored(tree.modules.size(), false);
  std::vector<std::string> out;
  for (uint32_t i = 0; i < tree.modules.size(); ++i) {
    const Module& module = tree.modules[i];
    ignored[i] = i > 0 && ignored[module.parent];
    if (ignored[i] || !std::regex_match(module.fqn, pattern)) {
      continue;
    }
    if (i == 0) {
      node.fail("the regular expression matches the model itself, of which nothing is left then");
    }
    ignored[i] = true;
    out.push_back(module.fqn);
  }
  return out;
}

void add_ends(const ModuleTree& tree, std::vector<UnitEntry>& units) {
  const Module* input = input_embedding(tree);
  const Module* output = tree.find("lm_head");
  const bool tied =
      input != nullptr && output != nullptr && output->parameters == input->parameters;
  if (input != nullptr && !tied && !is_unit(units, *input)) {
    units.push_back(unit_of({input->fqn}));
  }
  UnitEntry tail;
  tail.grouped = true;
  tail.reshard_after_forward = Reshard{.kind = Reshard::Kind::kNo};
  for (const Module* each : {final_norm(tree), tied ? input : nullptr, output}) {
    if (each != nullptr && !is_unit(units, *each)) {
      tail.globs.push_back(each->fqn);
    }
  }
  if (!tail.globs.empty()) {
    units.push_back(std::move(tail));
  }
}

}  // namespace shardlens::plan
