#include "core/checkpoint/checkpoint_index.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_reader.h"

namespace shardlens::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
using plan::JsonNode;

constexpr int64_t kVersion = 1;
constexpr std::string_view kState = "state.";
constexpr std::string_view kRank = "rank";
constexpr int64_t kMost = int64_t{1} << 53;  // what every reader of JSON keeps

Json json_of(const Piece& piece) {
  Json out{{"file", piece.file}, {"offset", piece.box.offset}, {"shape", piece.box.shape}};
  if (piece.crc32) {
    out["crc32"] = fmt::format("{:08x}", *piece.crc32);
  }
  return out;
}

std::vector<int64_t> read_sizes(const JsonNode& node) {
  std::vector<int64_t> out;
  for (const JsonNode& size : node.items("a list of sizes")) {
    out.push_back(size.integer(0, kMost));
  }
  return out;
}

Piece read_piece(const JsonNode& node, const SavedTensor& tensor, size_t files) {
  node.expect_object("a piece of a tensor");
  Piece piece;
  piece.file =
      static_cast<uint32_t>(node.require("file").integer(0, static_cast<int64_t>(files) - 1));
  piece.box = {read_sizes(node.require("offset")), read_sizes(node.require("shape"))};
  const Box& box = piece.box;
  bool inside = box.offset.size() == tensor.shape.size() && box.shape.size() == tensor.shape.size();
  for (size_t dim = 0; inside && dim < tensor.shape.size(); ++dim) {
    inside = box.offset[dim] + box.shape[dim] <= tensor.shape[dim];
  }
  if (!inside) {
    node.fail(fmt::format("the piece at [{}] of shape [{}] is not inside tensor '{}' [{}]",
                          fmt::join(box.offset, ", "), fmt::join(box.shape, ", "), tensor.name,
                          fmt::join(tensor.shape, ", ")));
  }
  if (const auto sum = node.find("crc32")) {
    const std::string text = sum->string();
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != 8 || error != std::errc() || end != text.data() + text.size()) {
      sum->fail("expected 8 hexadecimal digits, found '" + text + "'");
    }
    piece.crc32 = value;
  }
  return piece;
}

SavedTensor read_tensor(const JsonNode& node, size_t files, bool whole) {
  node.expect_object("a tensor");
  SavedTensor tensor;
  tensor.name = node.require("name").string();
  const JsonNode dtype = node.require("dtype");
  const auto parsed = parse_dtype(dtype.string());
  if (!parsed) {
    dtype.fail("unknown dtype '" + dtype.string() + "'");
  }
  tensor.dtype = *parsed;
  tensor.shape = read_sizes(node.require("shape"));
  const int64_t numel = numel_of(tensor.shape);
  if (numel > kMost) {
    node.fail(fmt::format("tensor '{}' [{}] has too many elements", tensor.name,
                          fmt::join(tensor.shape, ", ")));
  }
  int64_t stored = 0;
  for (const JsonNode& piece : node.require("pieces").items("a list of pieces")) {
    tensor.pieces.push_back(read_piece(piece, tensor, files));
    stored = std::min(stored + tensor.pieces.back().box.numel(), kMost + 1);
  }
  if (whole && stored != numel) {
    node.fail(
        fmt::format("tensor '{}' has {} elements, its pieces have {}", tensor.name, numel, stored));
  }
  return tensor;
}

SavedFile read_file(const JsonNode& node) {
  node.expect_object("a file");
  SavedFile file{node.require("name").string(), node.require("bytes").integer(0, kMost)};
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "..") {
    node.fail("'" + file.name + "' is not the name of a file next to the index");
  }
  return file;
}

Position read_position(const JsonNode& root) {
  Position position;
  position.step = root.require("step").integer(0, kMost);
  position.samples = root.require("samples").integer(0, kMost);
  position.seq = root.require("seq").integer(0, kMost);
  const JsonNode scaler = root.require("scaler");
  if (!scaler.is_null()) {
    scaler.expect_object("the gradient scaler");
    position.scaler = Position::Scaler{scaler.require("scale").number(),
                                       scaler.require("good_steps").integer(0, kMost)};
  }
  return position;
}

Origin read_origin(const JsonNode& node) {
  node.expect_object("what wrote the checkpoint");
  return {node.require("world_size").integer(1, kMost),
          node.require("replicate").integer(1, kMost),
          node.require("shard").integer(1, kMost),
          node.require("dialect").string(),
          node.require("layout").string(),
          node.require("optimizer").string()};
}

Index parse(std::string_view json, const std::string& source, bool whole) {
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("the index of a checkpoint");
  (void)root.require("shardlens_checkpoint").integer(kVersion, kVersion);
  Index index;
  if (whole) {
    index.position = read_position(root);
    index.origin = read_origin(root.require("origin"));
  }
  for (const JsonNode& file : root.require("files").items("a list of files")) {
    index.files.push_back(read_file(file));
  }
  for (const JsonNode& tensor : root.require("tensors").items("a list of tensors")) {
    index.tensors.push_back(read_tensor(tensor, index.files.size(), whole));
  }
  return index;
}

// "rank<r>." at the beginning of a name, or "".
std::string_view rank_prefix(std::string_view name) {
  if (!name.starts_with(kRank)) {
    return {};
  }
  const size_t end = name.find_first_not_of("0123456789", kRank.size());
  return end == kRank.size() || end == std::string_view::npos || name[end] != '.'
             ? std::string_view{}
             : name.substr(0, end + 1);
}

}  // namespace

std::string state_name(std::string_view parameter, std::string_view moment) {
  return fmt::format("{}{}.{}", kState, parameter, moment);
}

std::string name_on_rank(int64_t rank, std::string_view name) {
  return fmt::format("{}{}.{}", kRank, rank, name);
}

std::string parameter_of(std::string_view tensor) {
  tensor.remove_prefix(rank_prefix(tensor).size());
  if (tensor.starts_with(kState)) {
    tensor.remove_prefix(kState.size());
    tensor = tensor.substr(0, tensor.rfind('.'));
  }
  return std::string(tensor);
}

bool is_parameter(std::string_view tensor) {
  return rank_prefix(tensor).empty() && !tensor.starts_with(kState);
}

std::string to_json(const Index& index) {
  Json out{{"shardlens_checkpoint", kVersion},
           {"step", index.position.step},
           {"samples", index.position.samples},
           {"seq", index.position.seq},
           {"scaler", nullptr}};
  if (index.position.scaler) {
    out["scaler"] = {{"scale", index.position.scaler->scale},
                     {"good_steps", index.position.scaler->good_steps}};
  }
  const Origin& origin = index.origin;
  out["origin"] = {{"world_size", origin.world_size}, {"replicate", origin.replicate},
                   {"shard", origin.shard},           {"dialect", origin.dialect},
                   {"layout", origin.layout},         {"optimizer", origin.optimizer}};
  out["files"] = Json::array();
  for (const SavedFile& file : index.files) {
    out["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  // One line for each tensor, which a person can read.
  std::string text = out.dump(1);
  text.resize(text.rfind('}') - 1);
  text += ",\n \"tensors\": [";
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const SavedTensor& tensor = index.tensors[i];
    Json line{{"name", tensor.name},
              {"dtype", std::string(safetensors_name(tensor.dtype))},
              {"shape", tensor.shape},
              {"pieces", Json::array()}};
    for (const Piece& piece : tensor.pieces) {
      line["pieces"].push_back(json_of(piece));
    }
    text += (i == 0 ? "\n  " : ",\n  ") + line.dump();
  }
  return text + "\n ]\n}\n";
}

Index parse_index(std::string_view json, const std::string& source) {
  return parse(json, source, true);
}

Index parse_part(std::string_view json, const std::string& source) {
  return parse(json, source, false);
}

Index load_index(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kIndexFile;
  return parse_index(plan::read_text_file(path), path.string());
}

}  // namespace shardlens::checkpoint
