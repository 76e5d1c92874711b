// Fuzzes what is read besides traces: any bytes are read, or refused with an InputError or a
// UsageError. --target=NAME chooses the reader; --targets lists them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/checkpoint_verify.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/token_file.h"
#include "core/weights/safetensors.h"
#include "core/workload/workload.h"
#include "profiler/analysis/summary/summary_file.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/check.h"
#include "profiler/trace/actions_file.h"
#include "profiler/trace/metrics_file.h"
#include "profiler/trace/run.h"
#include "profiler/trace/spool/spool_format.h"
#include "profiler/trace/spool/spool_trace.h"
#include "sim/calibrate/calibration.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/hardware/stacks.h"
#include "sim/validate/collective_tables.h"
#include "sim/validate/published_runs.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/structured_mutator.h"
#include "tests/support/temporary_directory.h"

#include "cli/flags/foreign_plan.h"
#include "cli/results/search_state.h"

namespace {

using namespace shardlens;  // NOLINT: a fuzz target is one file
using fuzz::require;

// A directory for the inputs that are read from files.
const std::filesystem::path& folder() {
  static const test::TemporaryDirectory made;
  return made.path();
}

std::filesystem::path file_with(std::string_view bytes, const std::filesystem::path& name) {
  const std::filesystem::path path = folder() / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

// 64 bits, little-endian.
std::string length_of(size_t bytes) {
  std::string out;
  for (unsigned i = 0; i < 8; ++i) {
    out += static_cast<char>(bytes >> (8 * i) & 0xff);
  }
  return out;
}

void model(std::string_view input) {
  const plan::ModelConfig config = plan::parse_model_config(input, "f.json");
  (void)plan::module_tree(config);
}

void plans(std::string_view input) {
  static const plan::ModuleTree tree = plan::module_tree(plan::parse_model_config(
      R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
          "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1})",
      "config.json"));
  const plan::Plan read = plan::parse_plan(input, "f.json");
  const std::string written = plan::to_json(read);
  require(plan::to_json(plan::parse_plan(written, "again.json")) == written,
          "what is written reads back");
  (void)plan::resolve(read, tree, 4);
}

// A file of accelerate or transformers. A message has one line, with the file.
void foreign_plan(std::string_view input) {
  static const plan::ModuleTree tree = plan::module_tree(plan::parse_model_config(
      R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
          "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1})",
      "config.json"));
  try {
    const plan::ForeignPlan read = cli::parse_foreign_plan(input, "f.yaml", tree);
    const std::string written = plan::to_json(read.plan);
    require(plan::to_json(plan::parse_plan(written, "again.json")) == written,
            "the plan of a file is a plan file");
    (void)plan::resolve(read.plan, tree, read.world_size.value_or(4));
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    require(message.starts_with("f.yaml"), "a message names the file");
    require(message.find('\n') == std::string_view::npos, "a message is one line");
  }
}

void workload(std::string_view input) {
  plan::ResolvedPlan plan;
  plan.world_size = 8;
  (void)plan::parse_workload(input, "f.json", plan);
}

void hardware(std::string_view input) {
  (void)sim::parse_hardware(input, "f.json");
}

void stacks(std::string_view input) {
  (void)sim::parse_stacks(input, "f.json");
}

void calibration(std::string_view input) {
  const std::string written = to_json(sim::parse_calibration(input, "f.json"));
  require(to_json(sim::parse_calibration(written, "again.json")) == written,
          "what is written reads back");
}

// What is read is also compared with itself.
void baseline(std::string_view input) {
  const std::vector<check::RunSummary> runs = check::parse_baseline(input, "f.json");
  const std::string written = check::to_json(runs);
  require(check::to_json(check::parse_baseline(written, "again.json")) == written,
          "what is written reads back");
  (void)check::check_runs(runs, runs);
  const auto half = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  if (half != runs.begin()) {
    (void)check::check_runs({runs.begin(), half}, {half, runs.end()});
  }
}

void actions(std::string_view input) {
  std::vector<trace::Diagnostic> diagnostics;
  (void)trace::read_actions(file_with(input, "rank0.actions.jsonl"), diagnostics);
}

// An odd first byte: header and records get the checksums that they need.
void spool(std::string_view input) {
  if (input.empty()) {
    return;
  }
  std::string bytes(input.substr(1));
  if ((input[0] & 1) != 0) {
    const auto repair = [&]<typename Part>(size_t at, Part part) {
      std::memcpy(&part, bytes.data() + at, sizeof part);
      part.check = trace::spool_check(part);
      std::memcpy(bytes.data() + at, &part, sizeof part);
    };
    for (size_t at = 0; at + sizeof(trace::SpoolRecord) <= bytes.size();
         at += sizeof(trace::SpoolRecord)) {
      at == 0 ? repair(at, trace::SpoolHeader()) : repair(at, trace::SpoolRecord());
    }
  }
  (void)trace::spool_to_trace(trace::parse_spool(bytes, "f.spool"));
}

void summary(std::string_view input) {
  (void)analysis::parse_summary(std::string(input), "f.summary");
}

// An odd first byte: a header, whose length and 64 bytes of data are added; otherwise a whole file.
void tensors(std::string_view input) {
  if (input.empty()) {
    return;
  }
  std::string bytes(input.substr(1));
  if ((input[0] & 1) != 0) {
    bytes = length_of(bytes.size()) + bytes + std::string(64, '\1');
  }
  const auto found = models::Checkpoint::open(file_with(bytes, "f.safetensors"));
  std::vector<float> values(1);
  for (const models::TensorEntry& each : found.tensors()) {
    if (each.numel > 0 && each.stored_dtype == "F32") {
      found.read(each, each.numel - 1, values);
    }
  }
}

void tensor_index(std::string_view input) {
  static const std::string shard =
      R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  static const auto path =
      file_with(length_of(shard.size()) + shard + std::string(8, '\0'), "index/one.safetensors");
  file_with(input, "index/model.safetensors.index.json");
  (void)models::Checkpoint::open(path.parent_path());
}

// Opens it, and reads the last element of each tensor.
void read_checkpoint(const std::filesystem::path& saved) {
  checkpoint::Reader reader = checkpoint::Reader::open(saved);
  (void)checkpoint::verify(reader);
  for (const checkpoint::SavedTensor& tensor : reader.index().tensors) {
    if (numel_of(tensor.shape) > 0) {
      float value = 0;
      reader.read(tensor, numel_of(tensor.shape) - 1, {&value, 1});
    }
  }
}

// The index of a checkpoint, with a file that it may name.
void checkpoints(std::string_view input) {
  static const std::string file =
      R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}})";
  static const auto path =
      file_with(length_of(file.size()) + file + std::string(16, '\0'), "saved/r0.safetensors");
  file_with(input, "saved/checkpoint.json");
  read_checkpoint(path.parent_path());
}

// A checkpoint that PyTorch wrote: [{header of a file}, {offsets of its tensors}, …], a pair for
// each of at most two files. Each file has 64 bytes of data.
void pytorch_checkpoint(std::string_view input) {
  const nlohmann::json document = nlohmann::json::parse(input, nullptr, false);
  if (!document.is_array()) {
    return;
  }
  const std::filesystem::path saved = folder() / "pytorch";
  std::filesystem::remove_all(saved);
  for (size_t i = 0; i + 1 < std::min<size_t>(document.size(), 4); i += 2) {
    nlohmann::json header = document[i];
    if (header.is_object()) {
      header["__metadata__"] = {
          {"DCP_SHARDING_INFO",
           document[i + 1].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)}};
    }
    const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    file_with(length_of(text.size()) + text + std::string(64, '\1'),
              "pytorch/" + std::to_string(i) + ".safetensors");
  }
  if (std::filesystem::exists(saved) && checkpoint::is_checkpoint(saved)) {
    read_checkpoint(saved);
  }
}

// The first three bytes choose the width of a token, the size of the vocabulary and the samples.
void tokens(std::string_view input) {
  if (input.size() < 3) {
    return;
  }
  constexpr const char* kNames[] = {"t.u32.bin", "t.bin", "t.txt"};
  const auto byte = [&](size_t i) { return static_cast<int64_t>(input[i] & 0xff); };
  const train::TokenFile file(file_with(input.substr(3), kNames[byte(0) % 3]));
  const train::BatchShape shape{0, 1 + byte(2) % 3, 1 + byte(2) / 3 % 3, 1 + byte(2) / 9,
                                byte(0) / 3 % 2};
  const int64_t vocabulary = 1 + byte(1) * byte(1);
  train::check_tokens(file, shape, 1 + byte(0) / 6, vocabulary);
  std::vector<int64_t> sample(static_cast<size_t>(shape.seq) + 1);
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    train::BatchShape of_rank = shape;
    of_rank.rank = rank;
    file.read(train::sample_index(of_rank, 0, 0, file.samples(shape.seq)) * shape.seq, sample);
    for (const int64_t token : sample) {
      require(token >= 0 && token < vocabulary, "tokens are within the vocabulary");
    }
  }
}

// What follows the first line of a search's state, which has to be that of the same search.
void search_state(std::string_view input) {
  const auto path = file_with("{\"search\":{}}\n" + std::string(input), "search.jsonl");
  const auto first = cli::SearchState(path, "{}").known();
  const auto second = cli::SearchState(path, "{}").known();
  require(first.size() == second.size(), "what a search continues from stays the same");
}

void training_runs(std::string_view input) {
  (void)sim::parse_published_runs(input, "f.csv");
}

void collective_tables(std::string_view input) {
  (void)sim::collective_errors(sim::parse_collective_table(input, "f.csv").curves);
}

// run.json of a capture directory.
void capture(std::string_view input) {
  static const auto path = file_with(
      R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]})",
      "capture/rank0.json");
  file_with(input, "capture/run.json");
  (void)trace::Run::open(path.parent_path());
}

void metrics(std::string_view input) {
  std::vector<trace::Diagnostic> diagnostics;
  (void)trace::read_metrics(file_with(input, "metrics.jsonl"), diagnostics);
}

struct Target {
  std::string_view name;
  void (*run)(std::string_view);
  fuzz::Form form = fuzz::Form::kBytes;
};

constexpr Target kTargets[] = {{"model", model, fuzz::Form::kJson},
                               {"plan", plans, fuzz::Form::kJson},
                               {"accelerate", foreign_plan},
                               {"fsdp_config", foreign_plan, fuzz::Form::kJson},
                               {"workload", workload, fuzz::Form::kJson},
                               {"hardware", hardware, fuzz::Form::kJson},
                               {"stacks", stacks, fuzz::Form::kJson},
                               {"calibration", calibration, fuzz::Form::kJson},
                               {"baseline", baseline, fuzz::Form::kJson},
                               {"actions", actions, fuzz::Form::kJsonLines},
                               {"spool", spool},
                               {"summary", summary, fuzz::Form::kMessagePack},
                               {"tensors", tensors, fuzz::Form::kJsonAfterByte},
                               {"tensor_index", tensor_index, fuzz::Form::kJson},
                               {"checkpoint", checkpoints, fuzz::Form::kJson},
                               {"pytorch_checkpoint", pytorch_checkpoint, fuzz::Form::kJson},
                               {"tokens", tokens},
                               {"search_state", search_state, fuzz::Form::kJsonLines},
                               {"training_runs", training_runs},
                               {"collective_tables", collective_tables},
                               {"capture", capture, fuzz::Form::kJson},
                               {"metrics", metrics, fuzz::Form::kJsonLines}};

const Target* chosen = nullptr;

}  // namespace

fuzz::Form fuzz::form_of(std::string_view /*input*/) {
  return chosen->form;
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--target=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument == "--targets") {
      for (const Target& target : kTargets) {
        std::cout << target.name << '\n';
      }
      std::exit(0);
    }
    for (const Target& target : kTargets) {
      if (argument.starts_with(kFlag) && argument.substr(kFlag.size()) == target.name) {
        chosen = &target;
      }
    }
  }
  if (chosen == nullptr) {
    std::cerr << "--target=NAME is missing; --targets lists the names\n";
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    chosen->run({reinterpret_cast<const char*>(data), size});
  } catch (const InputError& error) {
    require(error.what()[0] != '\0', "a message says what is wrong");
  } catch (const UsageError&) {
  }
  return 0;
}
