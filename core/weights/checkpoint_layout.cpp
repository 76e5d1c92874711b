#include "core/weights/checkpoint_layout.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"

namespace shardlens::models {
namespace {

constexpr std::array<std::string_view, 2> kBasePrefixes{"transformer.", "model."};

const TensorEntry* find_with_or_without_prefix(const Checkpoint& checkpoint,
                                               std::string_view name) {
  if (const TensorEntry* entry = checkpoint.find(name)) {
    return entry;
  }
  for (const std::string_view prefix : kBasePrefixes) {
    if (name.starts_with(prefix)) {
      if (const TensorEntry* entry = checkpoint.find(name.substr(prefix.size()))) {
        return entry;
      }
    }
  }
  return nullptr;
}

void require_fit(const Checkpoint& checkpoint,
                 const TensorEntry& entry,
                 const std::vector<int64_t>& shape) {
  if (entry.shape != shape) {
    throw InputError(checkpoint.file_of(entry).string(),
                     fmt::format("tensor '{}' has shape [{}], the model's config needs [{}]",
                                 entry.name, fmt::join(entry.shape, ", "), fmt::join(shape, ", ")));
  }
  checkpoint.read(entry, 0, {});  // throws for a dtype that cannot be read
}

StoredTensor stored_as(std::string name, std::vector<int64_t> shape) {
  StoredTensor out{std::move(name), std::move(shape), 1};
  for (const int64_t size : out.shape) {
    out.numel *= size;
  }
  return out;
}

// "<layer>.mlp.<rest>" split at the MLP; empty `layer`: it is no part of one.
struct PlaceInMlp {
  std::string_view layer, rest;
};

PlaceInMlp place_in_mlp(const plan::DecoderFamily& family, std::string_view name) {
  const plan::Slot* mlp = plan::find_slot(family.layer, plan::Part::kMlp);
  if (mlp == nullptr) {
    return {};
  }
  const std::string within = fmt::format(".{}.", mlp->name);
  const size_t at = name.find(within);
  return at == std::string_view::npos
             ? PlaceInMlp{}
             : PlaceInMlp{name.substr(0, at), name.substr(at + within.size())};
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const plan::ModelConfig& config,
                                         const plan::Parameter& parameter) {
  const plan::DecoderFamily* family = plan::find_decoder_family(config);
  const PlaceInMlp place = family == nullptr || family->stored.mlp.empty()
                               ? PlaceInMlp{}
                               : place_in_mlp(*family, parameter.fqn);
  if (place.layer.empty()) {
    return {stored_as(parameter.fqn, parameter.shape)};
  }
  const plan::StoredNames& names = family->stored;
  const bool both = place.rest == "experts.gate_up_proj";
  if (!both && place.rest != "experts.down_proj") {
    return {
        stored_as(fmt::format("{}.{}.{}", place.layer, names.mlp, place.rest), parameter.shape)};
  }
  const std::vector<std::string_view> parts =
      both ? std::vector{names.gate, names.up} : std::vector{names.down};
  std::vector<StoredTensor> out;
  for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
    for (const std::string_view part : parts) {
      out.push_back(
          stored_as(fmt::format("{}.{}.experts.{}.{}.weight", place.layer, names.mlp, expert, part),
                    {parameter.shape[1] / static_cast<int64_t>(parts.size()), parameter.shape[2]}));
    }
  }
  return out;
}

CheckpointParameter::CheckpointParameter(const Checkpoint& checkpoint,
                                         const plan::ModelConfig& config,
                                         const plan::Parameter& parameter)
    : checkpoint_(&checkpoint) {
  std::vector<std::string> names{parameter.fqn};
  names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
  for (const std::string& name : names) {
    if (const TensorEntry* entry = find_with_or_without_prefix(checkpoint, name)) {
      require_fit(checkpoint, *entry, parameter.shape);
      parts_ = {entry};
      return;
    }
  }
  for (const StoredTensor& stored : stored_tensors(config, parameter)) {
    const TensorEntry* entry = find_with_or_without_prefix(checkpoint, stored.name);
    if (entry == nullptr) {
      entry = &checkpoint.at(stored.name);  // throws, naming the nearest tensor
    }
    require_fit(checkpoint, *entry, stored.shape);
    parts_.push_back(entry);
  }
}

void CheckpointParameter::read(int64_t first, std::span<float> out) const {
  int64_t begin = 0;  // of the part, in the parameter
  size_t done = 0;
  for (const TensorEntry* part : parts_) {
    const int64_t from = first + static_cast<int64_t>(done) - begin;
    if (from < part->numel && done < out.size()) {
      const size_t count = std::min(out.size() - done, static_cast<size_t>(part->numel - from));
      checkpoint_->read(*part, from, out.subspan(done, count));
      done += count;
    }
    begin += part->numel;
  }
  SHARDLENS_CHECK(done == out.size(), "elements beyond the end of a parameter");
}

}  // namespace shardlens::models
