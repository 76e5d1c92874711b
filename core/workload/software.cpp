#include "core/workload/software.h"

#include <array>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/json/json_reader.h"
#include "core/workload/step_limits.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

constexpr std::array<std::string_view, kCompileCount> kCompileNames{"none", "block", "model"};
constexpr std::array<std::string_view, kMatmulDTypeCount> kMatmulDTypeNames{
    "fp8_tensorwise", "fp8_rowwise", "mxfp8", "nvfp4", "mxfp8_cublas_rceil"};

}  // namespace

std::string_view name_of(Compile compile) {
  return kCompileNames[static_cast<size_t>(compile)];
}

std::string_view name_of(MatmulDType dtype) {
  return kMatmulDTypeNames[static_cast<size_t>(dtype)];
}

nlohmann::ordered_json software_json(const Software& software) {
  using nlohmann::ordered_json;
  return {
      {"compile", name_of(software.compile)},
      {"cuda_graphs", software.cuda_graphs},
      {"matmul_dtype",
       software.matmul_dtype ? ordered_json(name_of(*software.matmul_dtype)) : ordered_json()},
      {"matmul_tail", software.matmul_tail},
      {"loss_chunks", software.loss_chunks ? ordered_json(*software.loss_chunks) : ordered_json()},
      {"expandable_segments", software.expandable_segments
                                  ? ordered_json(*software.expandable_segments)
                                  : ordered_json()}};
}

Software software_of(const JsonNode& node) {
  static const Names kKeys{"compile",     "cuda_graphs", "matmul_dtype",
                           "matmul_tail", "loss_chunks", "expandable_segments"};
  static const Names kCompiles(kCompileNames.begin(), kCompileNames.end());
  static const Names kDTypes(kMatmulDTypeNames.begin(), kMatmulDTypeNames.end());
  node.expect_object("the software of a step");
  node.allow_only(kKeys);
  const auto given = [&](std::string_view key) {
    auto found = node.find(key);
    return found && !found->is_null() ? found : std::nullopt;
  };
  Software out;
  if (const auto compile = given("compile")) {
    out.compile = static_cast<Compile>(compile->one_of(kCompiles));
  }
  if (const auto graphs = given("cuda_graphs")) {
    out.cuda_graphs = graphs->boolean();
  }
  if (const auto dtype = given("matmul_dtype")) {
    out.matmul_dtype = static_cast<MatmulDType>(dtype->one_of(kDTypes));
  }
  if (const auto tail = given("matmul_tail")) {
    out.matmul_tail = tail->integer(0, kMostMatmulTail);
  }
  if (const auto chunks = given("loss_chunks")) {
    out.loss_chunks = chunks->integer(1, kMostLossChunks);
  }
  if (const auto segments = given("expandable_segments")) {
    out.expandable_segments = segments->boolean();
  }
  return out;
}

}  // namespace shardlens::plan
