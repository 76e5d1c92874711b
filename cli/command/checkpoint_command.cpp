#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/checkpoint_verify.h"
#include "core/checkpoint/save_directory.h"
#include "core/checkpoint/whole_tensors.h"
#include "core/files/directory_lock.h"
#include "core/json/json_dump.h"
#include "core/weights/safetensors.h"
#include "profiler/report/table.h"

#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Index;
using checkpoint::Reader;
using checkpoint::SavedTensor;

constexpr int64_t kMostRanksOut = 4096;

struct CheckpointCommandOptions {
  std::string action;
  fs::path path;
  Outputs outputs;
  std::optional<int64_t> world_size;
  bool optimizer = false, json = false;
};

std::string why_unfinished(const fs::path& root) {
  const auto holder = DirectoryLock::holder(checkpoint::save_place(root).file);
  return holder ? *holder + " is saving a run there" : "its save was interrupted";
}

// The checkpoint that a path means. Errors: InputError.
fs::path checkpoint_at(const fs::path& path) {
  if (const auto found = checkpoint::latest_checkpoint(path)) {
    return *found;
  }
  const auto unfinished = checkpoint::unfinished_saves(path);
  throw InputError(path.string(), "has no checkpoint" +
                                      (unfinished.empty() ? std::string()
                                                          : fmt::format("; {} is not complete: {}",
                                                                        unfinished.back().string(),
                                                                        why_unfinished(path))));
}

void tell_unfinished(const fs::path& path) {
  const auto unfinished = checkpoint::unfinished_saves(path);
  if (unfinished.empty()) {
    return;
  }
  const std::string why = why_unfinished(path);
  for (const fs::path& each : unfinished) {
    write_stderr("{} is not complete: {}\n", each.string(), why);
  }
}

Bytes bytes_of(const SavedTensor& tensor) {
  return numel_of(tensor.shape) * size_of(tensor.dtype);
}

std::string show_json(const fs::path& folder, const Index& index) {
  nlohmann::ordered_json out{{"schema", 1},
                             {"path", folder.string()},
                             {"step", index.position.step},
                             {"samples", index.position.samples},
                             {"seq", index.position.seq},
                             {"world_size", index.origin.world_size},
                             {"optimizer", index.origin.optimizer}};
  out["tensors"] = nlohmann::ordered_json::array();
  for (const SavedTensor& tensor : index.tensors) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"dtype", std::string(safetensors_name(tensor.dtype))},
                              {"shape", tensor.shape},
                              {"bytes", bytes_of(tensor)},
                              {"pieces", tensor.pieces.size()}});
  }
  return plan::json_text(out, 2) + "\n";
}

Shown show_text(const fs::path& folder, const Index& index) {
  Bytes parameters = 0;
  Bytes total = 0;
  report::Table table({{"tensor", report::Align::kLeft},
                       {"dtype", report::Align::kLeft},
                       {"shape", report::Align::kLeft},
                       {"size"},
                       {"pieces"}});
  for (const SavedTensor& tensor : index.tensors) {
    total += bytes_of(tensor);
    if (checkpoint::is_parameter(tensor.name)) {
      parameters += bytes_of(tensor);
      table.row({tensor.name, std::string(safetensors_name(tensor.dtype)),
                 fmt::format("[{}]", fmt::join(tensor.shape, ", ")), format_bytes(bytes_of(tensor)),
                 std::to_string(tensor.pieces.size())});
    }
  }
  const checkpoint::Origin& origin = index.origin;
  Shown out = show("{}: step {}, {} samples read\n", folder.string(), index.position.step,
                   index.position.samples);
  if (!origin.layout.empty()) {
    out += show("written by {} ranks ({} x {}), {}, {}, {}\n", origin.world_size, origin.replicate,
                origin.shard, origin.dialect, origin.layout, origin.optimizer);
  }
  if (index.position.scaler) {
    out += show("loss scale {}\n", index.position.scaler->scale);
  }
  out += show("{} in {} files: parameters {}, optimizer and generators {}\n\n", format_bytes(total),
              index.files.size(), format_bytes(parameters), format_bytes(total - parameters));
  return out + table.render(style_of_stdout());
}

ExitCode show_checkpoint(const CheckpointCommandOptions& options) {
  const fs::path folder = checkpoint_at(options.path);
  tell_unfinished(options.path);
  const Reader reader = Reader::open(folder);
  if (options.json) {
    write_data(show_json(folder, reader.index()));
  } else {
    write_stdout(show_text(folder, reader.index()));
  }
  return ExitCode::kOk;
}

ExitCode verify(const CheckpointCommandOptions& options) {
  const fs::path folder = checkpoint_at(options.path);
  tell_unfinished(options.path);
  Reader reader = Reader::open(folder);
  const checkpoint::Verification result = checkpoint::verify(reader);
  if (options.json) {
    const nlohmann::ordered_json out{{"schema", 1},
                                     {"path", folder.string()},
                                     {"pieces", result.pieces},
                                     {"bytes", result.bytes},
                                     {"without_checksum", result.without_checksum},
                                     {"damaged", result.damaged}};
    write_data(plan::json_text(out, 2) + "\n");
  } else {
    for (const std::string& damage : result.damaged) {
      write_stdout("{}\n", damage);
    }
  }
  if (!result.damaged.empty()) {
    throw InputError(folder.string(), fmt::format("{} of {} pieces are damaged",
                                                  result.damaged.size(), result.pieces));
  }
  if (!options.json) {
    const std::string unknown = result.without_checksum == 0
                                    ? ""
                                    : fmt::format("; {} have no checksum", result.without_checksum);
    write_stdout("{}: {} in {} pieces, none damaged{}\n", folder.string(),
                 format_bytes(result.bytes), result.pieces, unknown);
  }
  return ExitCode::kOk;
}

// The source of merge and convert: a checkpoint, or a Hugging Face directory or file.
fs::path source_at(const fs::path& path) {
  const auto found = checkpoint::latest_checkpoint(path);
  return !found && models::has_checkpoint(path) ? path : checkpoint_at(path);
}

ExitCode merge(const CheckpointCommandOptions& options) {
  const fs::path source = source_at(options.path);
  const fs::path out = options.outputs.emptied_directory("--out");
  checkpoint::merge(source, out, options.optimizer);
  write_stderr("merged {} into {}\n", source.string(), out.string());
  return ExitCode::kOk;
}

ExitCode convert(const CheckpointCommandOptions& options) {
  const fs::path source = source_at(options.path);
  const fs::path out = options.outputs.emptied_directory("--out");
  checkpoint::reshard(source, out, *options.world_size);
  write_stderr("converted {} into {}, a checkpoint of {} ranks\n", source.string(), out.string(),
               *options.world_size);
  return ExitCode::kOk;
}

void check_flags(const CheckpointCommandOptions& options) {
  const bool writes = options.action == "merge" || options.action == "convert";
  const auto refuse = [&](bool given, const char* flag, const char* action) {
    if (given) {
      throw UsageError(fmt::format("{} is a flag of checkpoint {}", flag, action));
    }
  };
  refuse(options.outputs.given("--out") && !writes, "--out", "merge and convert");
  refuse(options.optimizer && options.action != "merge", "--optimizer", "merge");
  refuse(options.world_size && options.action != "convert", "--world-size", "convert");
  refuse(options.json && writes, "--json", "show and verify");
  if (writes && !options.outputs.given("--out")) {
    throw UsageError(fmt::format("checkpoint {} needs --out, a new directory", options.action));
  }
  if (options.action == "convert") {
    const int64_t ranks = options.world_size.value_or(0);
    if (ranks < 1 || ranks > kMostRanksOut) {
      throw UsageError(
          fmt::format("checkpoint convert needs --world-size, from 1 to {}", kMostRanksOut));
    }
  }
}

ExitCode run(const CheckpointCommandOptions& options) {
  check_flags(options);
  if (options.action == "show") {
    return show_checkpoint(options);
  }
  if (options.action == "verify") {
    return verify(options);
  }
  return options.action == "merge" ? merge(options) : convert(options);
}

}  // namespace

Action add_checkpoint_command(CLI::App& app) {
  auto options = std::make_shared<CheckpointCommandOptions>();
  app.add_option("action", options->action,
                 "show: what was saved; verify: compare all checksums; merge: write the whole "
                 "model as a Hugging Face directory; convert: write a checkpoint of another number "
                 "of ranks")
      ->required()
      ->check(CLI::IsMember({"show", "verify", "merge", "convert"}))
      ->option_text("show|verify|merge|convert");
  app.add_option("path", options->path,
                 "a checkpoint; a directory of checkpoints: its latest; for merge and convert also "
                 "a Hugging Face directory")
      ->required();
  options->outputs.add(app, "--out", "merge, convert: the directory to write",
                       Outputs::Force::kNever);
  app.add_option("--world-size", options->world_size, "convert: number of ranks");
  app.add_flag("--optimizer", options->optimizer,
               "merge: write optimizer.safetensors, the optimizer's state, too");
  app.add_flag("--json", options->json, "show, verify: print JSON");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
