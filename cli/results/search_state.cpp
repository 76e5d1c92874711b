#include "cli/results/search_state.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace shardlens::cli {

using nlohmann::json;

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
    while (std::getline(in, line)) {
      const json each = json::parse(line, nullptr, /*allow_exceptions=*/false);
      whole = !in.eof() && !each.is_discarded();
      if (!whole) {
        break;  // the search was stopped while it wrote the line
      }
      sim::Outcome& known = known_[each.at("plan").get<std::string>()];
      known.figures.compute = each.at("compute_ns");
      known.figures.exposed_comm = each.at("exposed_comm_ns");
      known.figures.exposed_copy = each.at("exposed_copy_ns");
      known.figures.idle = each.at("idle_ns");
      known.figures.comm = each.at("comm_ns");
      known.figures.overlap = each.at("overlap_ns");
      known.peak_reserved = each.at("peak_reserved_bytes");
      known.peak_allocated = each.at("peak_allocated_bytes");
      known.fits = each.at("fits");
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
