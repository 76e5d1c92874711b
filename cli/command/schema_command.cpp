#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "profiler/report/table.h"

#include "cli/command/schemas.h"
#include "cli/command/subcommand.h"
#include "cli/flags/parse_flags.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

void print_schemas() {
  report::Table table({{"schema", report::Align::kLeft}, {"of", report::Align::kLeft}});
  for (const Schema& schema : schemas()) {
    table.row({std::string(schema.name), description_of(schema)});
  }
  write_stdout(table.render(style_of_stdout()) + "\nshardlens schema NAME prints a schema.\n");
}

ExitCode print_schema(const std::string& name) {
  if (name.empty()) {
    print_schemas();
    return ExitCode::kOk;
  }
  std::vector<std::string> names;
  for (const Schema& schema : schemas()) {
    if (schema.name == name) {
      write_data(self_contained(schema));
      return ExitCode::kOk;
    }
    names.emplace_back(schema.name);
  }
  throw UsageError(show("schema: there is no schema '{}'{}; shardlens schema lists them", name,
                        did_you_mean(name, names)));
}

}  // namespace

Action add_schema_command(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  app.add_option("name", *name, "the schema to print [a list of them]")->option_text("NAME");
  return [name] { return print_schema(*name); };
}

}  // namespace shardlens::cli
