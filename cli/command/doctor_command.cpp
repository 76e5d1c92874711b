#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/json/json_dump.h"
#include "profiler/report/table.h"

#include "cli/command/subcommand.h"
#include "cli/results/doctor_parts.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct DoctorOptions {
  std::vector<std::string> needed;
  bool json = false;
};

bool is_needed(const Part& part, const std::vector<std::string>& needed) {
  return part.need.empty() || std::find(needed.begin(), needed.end(), part.need) != needed.end();
}

// What does not work is a fault in any case, what is missing only if it is needed.
bool fails(const Part& part, const std::vector<std::string>& needed) {
  return part.state == PartState::kBroken ||
         (part.state == PartState::kMissing && is_needed(part, needed));
}

Shown text_of(const std::vector<Part>& parts) {
  constexpr report::Align kLeft = report::Align::kLeft;
  report::Table table({{"part", kLeft}, {"state", kLeft}, {"needed for", kLeft}, {"seen", kLeft}});
  for (const Part& part : parts) {
    table.row({part.name, std::string(name_of(part.state)),
               part.need.empty() ? "anything" : part.need, part.seen});
  }
  Shown out = "shardlens " SHARDLENS_VERSION "\n\n" + table.render(style_of_stdout());
  bool first = true;
  for (const Part& part : parts) {
    if (!part.advice.empty()) {
      out += show("{}{} ({}): {}\n", first ? Shown("\nWhat to do, if it is needed:\n") : Shown(),
                  part.name, name_of(part.state), part.advice);
      first = false;
    }
  }
  return out;
}

std::string json_of(const std::vector<Part>& parts, bool ok) {
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["version"] = SHARDLENS_VERSION;
  out["ok"] = ok;
  out["parts"] = nlohmann::ordered_json::array();
  for (const Part& part : parts) {
    out["parts"].push_back({{"name", part.name},
                            {"state", name_of(part.state)},
                            {"needed_for", part.need},
                            {"seen", part.seen},
                            {"advice", part.advice}});
  }
  return plan::json_text(out, 1) + "\n";
}

ExitCode run(const DoctorOptions& options) {
  const std::vector<Part> parts = inspect_installation();
  const bool ok = std::none_of(parts.begin(), parts.end(),
                               [&](const Part& part) { return fails(part, options.needed); });
  if (options.json) {
    write_data(json_of(parts, ok));
  } else {
    write_stdout(text_of(parts));
  }
  return ok ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace

Action add_doctor_command(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_option("--need", options->needed,
                 "exit with code 1 if something is missing for this; may be repeated")
      ->option_text("build|capture|gpu|app")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(needs()));
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
