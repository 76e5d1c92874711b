#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"
#include "core/layout/box.h"

namespace shardlens::checkpoint {

inline constexpr std::string_view kIndexFile = "checkpoint.json";

// Where a run stood when it was saved.
struct Position {
  struct Scaler {
    double scale = 0;
    int64_t good_steps = 0;  // since the scale last changed
    friend bool operator==(const Scaler&, const Scaler&) = default;
  };
  int64_t step = 0;     // steps that are done
  int64_t samples = 0;  // read by all ranks together; the next one has this number
  int64_t seq = 0;      // tokens of a sample
  std::optional<Scaler> scaler = {};
  friend bool operator==(const Position&, const Position&) = default;
};

// The program and the settings that wrote the checkpoint. A run that resumes may differ in all but
// the optimizer.
struct Origin {
  int64_t world_size = 1, replicate = 1, shard = 1;
  std::string dialect, layout;  // as in a plan file
  std::string optimizer;        // "adamw", "sgd"; empty: unknown
  friend bool operator==(const Origin&, const Origin&) = default;
};

struct SavedFile {   // a file of a checkpoint
  std::string name;  // in the directory of the index
  Bytes bytes = 0;
  friend bool operator==(const SavedFile&, const SavedFile&) = default;
};

// A part of a tensor. The file has it as a tensor with the name of the whole and the box's shape.
struct Piece {
  uint32_t file = 0;  // index into Index::files
  Box box;
  std::optional<uint32_t> crc32 = {};  // of its bytes; files of other programs have none
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct SavedTensor {  // where a tensor's elements are
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of the whole
  std::vector<Piece> pieces;   // together they are the whole, each element once
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

// The names of tensors, all of which PyTorch's distributed checkpoints use: a parameter has its
// FQN, its optimizer state "state.<fqn>.<moment>" (get_optimizer_state_dict, flattened). What
// differs between ranks begins with "rank<r>.".
[[nodiscard]] std::string state_name(std::string_view parameter, std::string_view moment);
[[nodiscard]] std::string name_on_rank(int64_t rank, std::string_view name);
// The parameter that a tensor is, or whose state it is.
[[nodiscard]] std::string parameter_of(std::string_view tensor);
// Whether the tensor is a parameter that all ranks have in common.
[[nodiscard]] bool is_parameter(std::string_view tensor);

// The contents of checkpoint.json, or of one rank's part of it, which has only files and tensors.
struct Index {
  Position position;
  Origin origin;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
  friend bool operator==(const Index&, const Index&) = default;
};

[[nodiscard]] std::string to_json(const Index& index);
// Errors: InputError with the JSON pointer. Pieces outside their tensor, or that together do not
// have its number of elements, and names of files that lead out of the directory are errors too.
[[nodiscard]] Index parse_index(std::string_view json, const std::string& source);
// A rank's part may have some pieces of a tensor only.
[[nodiscard]] Index parse_part(std::string_view json, const std::string& source);
// Errors: InputError, also if the file cannot be read.
[[nodiscard]] Index load_index(const std::filesystem::path& directory);

}  // namespace shardlens::checkpoint
