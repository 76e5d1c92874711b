#include "cli/results/search_state.h"

#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_reader.h"

namespace shardlens::cli {

namespace {

constexpr uint64_t kLargestState = uint64_t{1} << 30;  // of millions of plans

sim::Outcome outcome_of(const plan::JsonNode& line) {
  const auto amount = [&](std::string_view key) { return line.require(key).integer(); };
  sim::Outcome out;
  out.figures.compute = amount("compute_ns");
  out.figures.exposed_comm = amount("exposed_comm_ns");
  out.figures.exposed_copy = amount("exposed_copy_ns");
  out.figures.idle = amount("idle_ns");
  out.figures.comm = amount("comm_ns");
  out.figures.overlap = amount("overlap_ns");
  out.peak_reserved = amount("peak_reserved_bytes");
  out.peak_allocated = amount("peak_allocated_bytes");
  out.fits = line.require("fits").boolean();
  return out;
}

}  // namespace

SearchState::SearchState(const std::filesystem::path& path, const std::string& identity) {
  const std::string first = nlohmann::json{{"search", nlohmann::json::parse(identity)}}.dump();
  bool whole = true;  // the last line is complete
  bool begun = false;
  if (has_file(path)) {
    InputLines lines(path, {.most_bytes = kLargestState});
    std::string line;
    begun = lines.next(line);
    if (begun && line != first) {
      throw InputError(path.string(),
                       "is not the state of this search: model, hardware, limit or flags differ; "
                       "name another file");
    }
    whole = lines.ended();
    for (size_t number = 2; lines.next(line); ++number) {
      whole = lines.ended();
      const nlohmann::json each = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!whole || each.is_discarded()) {
        continue;  // a search was stopped while it wrote the line; the next one went on below it
      }
      try {
        const std::string source;  // the line's number is in the message
        const plan::JsonNode result(each, source);
        result.expect_object("an object");
        const std::string name = result.require("plan").string();
        known_[name] = outcome_of(result);
      } catch (const InputError& error) {
        throw InputError(path.string(),
                         fmt::format("line {} is no result of a search: {}", number, error.what()));
      }
    }
  }
  file_.emplace(OutputFile::appending(path));
  if (!begun) {
    file_->write(first + "\n");
  } else if (!whole) {
    file_->write("\n");
  }
}

void SearchState::add(const std::string& name, const sim::Outcome& outcome) {
  file_->write(nlohmann::json{{"plan", name},
                              {"compute_ns", outcome.figures.compute},
                              {"exposed_comm_ns", outcome.figures.exposed_comm},
                              {"exposed_copy_ns", outcome.figures.exposed_copy},
                              {"idle_ns", outcome.figures.idle},
                              {"comm_ns", outcome.figures.comm},
                              {"overlap_ns", outcome.figures.overlap},
                              {"peak_reserved_bytes", outcome.peak_reserved},
                              {"peak_allocated_bytes", outcome.peak_allocated},
                              {"fits", outcome.fits}}
                   .dump() +
               "\n");
}

std::optional<DirectoryLock> lock_of_state(const std::filesystem::path& path) {
  if (path.empty()) {
    return std::nullopt;
  }
  std::error_code error;
  std::filesystem::path file = std::filesystem::weakly_canonical(path, error);
  if (error ||
      (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error))) {
    return std::nullopt;
  }
  file += ".lock";
  return DirectoryLock({file, fmt::format("--state {}", path.string()), "is searching with it",
                        "name another file"});
}

}  // namespace shardlens::cli
