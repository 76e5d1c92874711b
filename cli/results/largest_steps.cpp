#include "cli/results/largest_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/json/json_dump.h"
#include "profiler/report/table.h"

#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;
using sim::LargestStep;

constexpr size_t kAliveListed = 12;

ordered_json memory_json(const sim::Prediction& of, int64_t value) {
  const sim::StepMemory& memory = of.memory;
  ordered_json out{{"value", value},
                   {"peak_allocated_bytes", memory.peak_allocated},
                   {"peak_reserved_bytes", memory.peak_reserved},
                   {"memory", ordered_json::object()},
                   {"alive", ordered_json::array()}};
  for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
    out["memory"][std::string(name_of(static_cast<sim::MemoryCategory>(i)))] =
        memory.at_peak[static_cast<size_t>(i)];
  }
  for (size_t i = 0; i < std::min(kAliveListed, memory.alive.size()); ++i) {
    const sim::AliveAtPeak& each = memory.alive[i];
    out["alive"].push_back(
        {{"what", each.what},
         {"unit", each.unit == kNoUnit ? ordered_json()
                                       : ordered_json(of.priced.plan->units[each.unit].fqn)},
         {"category", name_of(each.category)},
         {"bytes", each.bytes}});
  }
  return out;
}

ordered_json step_json(const LargestStep& step) {
  ordered_json out{{"value", step.value}, {"unit", step.unit}, {"bound", step.bound},
                   {"largest", nullptr},  {"beyond", nullptr}, {"refusal", nullptr}};
  if (step.at) {
    out["largest"] = memory_json(*step.at, step.value);
  }
  if (step.beyond) {
    out["beyond"] = memory_json(*step.beyond, step.value + step.unit);
  }
  if (!step.refusal.empty()) {
    out["value"] = nullptr;
    out["refusal"] = step.refusal;
  }
  return out;
}

const sim::Prediction* any_of(const LargestSteps& steps) {
  for (const LargestStep* each : {&steps.batch, &steps.sequence}) {
    if (each->at || each->beyond) {
      return each->at ? &*each->at : &*each->beyond;
    }
  }
  return nullptr;
}

struct Column {  // a step whose memory is shown
  std::string title;
  const sim::Prediction* step;
};

std::vector<Column> columns_of(const LargestSteps& steps) {
  std::vector<Column> out;
  const auto add = [&out](std::string_view name, const LargestStep& step) {
    if (step.at) {
      out.push_back({fmt::format("{} {}", name, format_count(step.value)), &*step.at});
    }
    if (step.beyond) {
      out.push_back(
          {fmt::format("{} {}", name, format_count(step.value + step.unit)), &*step.beyond});
    }
  };
  add("batch", steps.batch);
  add("sequence", steps.sequence);
  return out;
}

void print_memory(const std::vector<Column>& columns, Bytes outside) {
  std::vector<report::Table::Column> titles{{"memory at the peak", report::Align::kLeft}};
  for (const Column& each : columns) {
    titles.push_back({each.title});
  }
  report::Table table(std::move(titles));
  const auto row = [&](std::string name, auto&& bytes_of) {
    std::vector<std::string> cells{std::move(name)};
    for (const Column& each : columns) {
      cells.push_back(format_bytes(bytes_of(each.step->memory)));
    }
    table.row(std::move(cells));
  };
  for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
    row(std::string(name_of(static_cast<sim::MemoryCategory>(i))),
        [i](const sim::StepMemory& of) { return of.at_peak[static_cast<size_t>(i)]; });
  }
  row("allocated", [](const sim::StepMemory& of) { return of.peak_allocated; });
  row("reserved", [](const sim::StepMemory& of) { return of.peak_reserved; });
  if (outside > 0) {
    row("in addition: CUDA, NCCL, cuBLAS", [outside](const sim::StepMemory&) { return outside; });
  }
  write_stdout(table.render(style_of_stdout()));
}

}  // namespace

LargestSteps largest_steps(const sim::Scenario& scenario, Bytes limit) {
  const bool shows = ::isatty(STDERR_FILENO) == 1;
  const auto found = [&](sim::StepSize size) {
    return largest_step(scenario, size, limit, [&](int64_t value) {
      if (shows) {
        write_stderr("\r{} {} \x1b[K", name_of(size), value);
      }
    });
  };
  LargestSteps out{scenario, limit, found(sim::StepSize::kBatch), found(sim::StepSize::kSequence)};
  if (shows) {
    write_stderr("\r\x1b[K");
  }
  return out;
}

std::string largest_text(const LargestStep& step) {
  if (!step.refusal.empty()) {
    return "-";
  }
  if (step.value == 0) {
    return "none";
  }
  return (step.beyond ? "" : "at least ") + format_count(step.value);
}

ordered_json fits_json(const LargestSteps& steps) {
  return {{"batch", step_json(steps.batch)}, {"sequence", step_json(steps.sequence)}};
}

std::string largest_steps_json(const LargestSteps& steps) {
  ordered_json out{{"schema", 1},
                   {"batch", steps.scenario.step.batch},
                   {"seq", nullptr},
                   {"accumulate", steps.scenario.step.accumulate},
                   {"capacity_bytes", nullptr},
                   {"available_bytes", nullptr},
                   {"memory_limit", nullptr}};
  if (steps.scenario.step.seq) {
    out["seq"] = *steps.scenario.step.seq;
  }
  if (const sim::Prediction* any = any_of(steps); any != nullptr && any->capacity > 0) {
    out["capacity_bytes"] = any->capacity;
    out["available_bytes"] = any->available;
  }
  if (steps.limit > 0) {
    out["memory_limit"] = steps.limit;
  }
  out["fits"] = fits_json(steps);
  return plan::json_text(out, 1) + "\n";
}

void print_largest_steps(const LargestSteps& steps) {
  const sim::Prediction* any = any_of(steps);
  if (any != nullptr) {
    Bytes allowed = any->available;
    if (steps.limit > 0 && (allowed == 0 || steps.limit < allowed)) {
      allowed = steps.limit;
    }
    write_stdout("{}  {} for the allocator on each of {} ranks, {}\n", bold("limit"),
                 format_bytes(allowed), any->priced.plan->world_size, any->machine);
  }
  const plan::StepSettings& step = steps.scenario.step;
  const std::string length =
      step.seq ? fmt::format(" of {} tokens", format_count(*step.seq)) : std::string();
  write_stdout("{}  {}{}\n", bold("largest batch"), largest_text(steps.batch), length);
  write_stdout(
      "{}  {}{}\n", bold("longest sequence"), largest_text(steps.sequence),
      steps.sequence.refusal.empty()
          ? fmt::format(" tokens, with {} sample{} a microbatch (multiples of {})",
                        format_count(step.batch), step.batch == 1 ? "" : "s", steps.sequence.unit)
          : std::string());
  for (const LargestStep* each : {&steps.batch, &steps.sequence}) {
    if (!each->refusal.empty()) {
      write_stdout("{}: {}\n",
                   name_of(each == &steps.batch ? sim::StepSize::kBatch : sim::StepSize::kSequence),
                   each->refusal);
    }
  }
  write_stdout("\n");
  if (const std::vector<Column> columns = columns_of(steps); !columns.empty()) {
    print_memory(columns, any->outside_memory.total());
  }
}

}  // namespace shardlens::cli
