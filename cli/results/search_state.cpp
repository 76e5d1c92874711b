#include "cli/results/search_state.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/plan/json_fault.h"

namespace shardlens::cli {

using nlohmann::json;

namespace {

sim::Outcome outcome_of(const json& line) {
  sim::Outcome out;
  out.figures.compute = line.at("compute_ns");
  out.figures.exposed_comm = line.at("exposed_comm_ns");
  out.figures.exposed_copy = line.at("exposed_copy_ns");
  out.figures.idle = line.at("idle_ns");
  out.figures.comm = line.at("comm_ns");
  out.figures.overlap = line.at("overlap_ns");
  out.peak_reserved = line.at("peak_reserved_bytes");
  out.peak_allocated = line.at("peak_allocated_bytes");
  out.fits = line.at("fits");
  return out;
}

}  // namespace

SearchState::SearchState(const std::filesystem::path& path, const std::string& identity)
    : path_(path) {
  const std::string first = json{{"search", json::parse(identity)}}.dump();
  std::ifstream in(path);
  std::string line;
  bool whole = true;  // the last line is complete
  if (in && std::getline(in, line)) {
    if (line != first) {
      throw InputError(path.string(),
                       "is not the state of this search: model, hardware, limit or flags differ; "
                       "name another file");
    }
    for (size_t number = 2; std::getline(in, line); ++number) {
      whole = !in.eof();
      const json each = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!whole || each.is_discarded()) {
        continue;  // a search was stopped while it wrote the line; the next one went on below it
      }
      try {
        const auto plan = each.at("plan").get<std::string>();
        known_[plan] = outcome_of(each);
      } catch (const json::exception& error) {
        throw InputError(path.string(), fmt::format("line {} is no result of a search: {}", number,
                                                    plan::fault_of(error)));
      }
    }
  }
  in.close();
  const bool fresh = known_.empty();
  out_.open(path, fresh ? std::ios::trunc : std::ios::app);
  if (fresh) {
    out_ << first << '\n';
  } else if (!whole) {
    out_ << '\n';
  }
  out_.flush();
  if (!out_) {
    throw RuntimeFault(path.string() + ": cannot be written");
  }
}

void SearchState::add(const std::string& name, const sim::Outcome& outcome) {
  out_ << json{{"plan", name},
               {"compute_ns", outcome.figures.compute},
               {"exposed_comm_ns", outcome.figures.exposed_comm},
               {"exposed_copy_ns", outcome.figures.exposed_copy},
               {"idle_ns", outcome.figures.idle},
               {"comm_ns", outcome.figures.comm},
               {"overlap_ns", outcome.figures.overlap},
               {"peak_reserved_bytes", outcome.peak_reserved},
               {"peak_allocated_bytes", outcome.peak_allocated},
               {"fits", outcome.fits}}
              .dump()
       << '\n';
  out_.flush();
  if (!out_) {
    throw RuntimeFault(path_.string() + ": cannot be written");
  }
}

}  // namespace shardlens::cli
