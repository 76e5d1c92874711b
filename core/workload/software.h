#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shardlens::plan {

class JsonNode;

// The parts that torch.compile compiles: nothing, each of the model's blocks and the loss, or all.
enum class Compile : uint8_t { kNone, kBlock, kModel };
inline constexpr int kCompileCount = 3;
[[nodiscard]] std::string_view name_of(Compile compile);  // "none", "block", "model"

// In what the products of linear layers are computed, as torchao's recipes: 8 bits with a scale for
// a tensor, for a row, or for 32 numbers; 4 bits with a scale for 16 numbers. kMxfp8CublasRceil is
// the recipe of 2025 whose scales are rounded up, at a cost that later versions do not have.
enum class MatmulDType : uint8_t { kFp8Tensorwise, kFp8Rowwise, kMxfp8, kNvfp4, kMxfp8CublasRceil };
inline constexpr int kMatmulDTypeCount = 5;
// "fp8_tensorwise", "fp8_rowwise", "mxfp8", "nvfp4", "mxfp8_cublas_rceil"
[[nodiscard]] std::string_view name_of(MatmulDType dtype);

// The software that a step runs under: a part of what runs, not of the plan.
struct Software {
  Compile compile = Compile::kNone;
  bool cuda_graphs = false;  // forward and backward of a microbatch are one CUDA graph
  std::optional<MatmulDType> matmul_dtype = std::nullopt;  // nullopt: as the plan's
  int64_t matmul_tail = 0;  // so many of the last blocks multiply as the plan says
  std::optional<int64_t> loss_chunks = std::nullopt;  // nullopt: what the program does
  // PYTORCH_ALLOC_CONF=expandable_segments:True; nullopt: what the program sets.
  std::optional<bool> expandable_segments = std::nullopt;
  friend bool operator==(const Software&, const Software&) = default;
};

// {"compile", "cuda_graphs", "matmul_dtype", "matmul_tail", "loss_chunks", "expandable_segments"};
// null for nullopt.
[[nodiscard]] nlohmann::ordered_json software_json(const Software& software);
// Errors: InputError with JSON pointer.
[[nodiscard]] Software software_of(const JsonNode& node);

}  // namespace shardlens::plan
