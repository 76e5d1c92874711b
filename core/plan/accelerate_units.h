#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json/json_reader.h"
#include "core/plan/plan.h"

// Which modules accelerate shards, by its rules. Source: accelerate 1.15, utils/fsdp_utils.py.
namespace shardlens::plan {

// A unit of every module that `globs` match.
[[nodiscard]] UnitEntry unit_of(std::vector<std::string> globs);
// The classes of the blocks, which transformers names in _no_split_modules.
[[nodiscard]] std::vector<std::string> classes_of_blocks(const ModuleTree& tree);
// Errors: InputError at `node` if no module has the class.
void require_class(const JsonNode& node, const ModuleTree& tree, const std::string& name);
// Globs for all modules of the classes.
[[nodiscard]] std::vector<std::string> modules_of_classes(const ModuleTree& tree,
                                                          const std::vector<std::string>& classes);
// FSDP2's SIZE_BASED_WRAP: every module below the root with more parameters than `size`. Errors:
// InputError at `node` for a list of modules, which fully_shard refuses.
[[nodiscard]] std::vector<UnitEntry> units_above(const JsonNode& node,
                                                 const ModuleTree& tree,
                                                 int64_t size);
// The outermost modules whose whole names the regular expression at `node` matches, as Python's
// re.fullmatch does, in the order of the tree. Errors: InputError at `node` for what no expression
// is, for the parts of Python's that are not read (named groups, flags, look-behind,
// back-references), and if it matches the model itself.
[[nodiscard]] std::vector<std::string> modules_of_pattern(const JsonNode& node,
                                                          const ModuleTree& tree);
// FSDP2: the input embedding, and the final norm with the output embedding (and the input's, if
// they are tied), which stay gathered after forward. Modules that are units already stay so.
void add_ends(const ModuleTree& tree, std::vector<UnitEntry>& units);

}  // namespace shardlens::plan
