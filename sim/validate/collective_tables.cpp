#include "sim/validate/collective_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/json/json_reader.h"
#include "sim/cost/collective_curve.h"
#include "sim/validate/csv_table.h"

namespace shardlens::sim {
namespace {

constexpr std::array kCollectiveColumns{"source", "gpu",        "n_gpus",  "collective",
                                        "algo",   "size_bytes", "time_us", "busbw_GBs"};
constexpr Bytes kFromHere = Bytes{1} << 20, kLarge = Bytes{64} << 20;

std::optional<double> time_of(const CsvRow& row, CollectiveKind kind, double bytes, double ranks) {
  const auto positive = [&row](const char* column) {
    const std::optional<double> value = row.number(column);
    if (value && !(*value > 0)) {
      throw InputError(row.where(), fmt::format("column '{}': expected a number > 0, found '{}'",
                                                column, row.text(column)));
    }
    return value;
  };
  const auto us = positive("time_us"), bus = positive("busbw_GBs");
  if (us || !bus) {
    return us;
  }
  return bytes * bus_factor(kind, static_cast<int64_t>(ranks)).value_or(1) / (*bus * 1e3);
}

// The name of the spec of a GPU type, by the beginning of the type's name; "": none.
std::string spec_of(std::string_view gpu) {
  constexpr std::pair<std::string_view, const char*> kSpecs[] = {{"A100", "8xA100-80"},
                                                                 {"H100-PCIe", ""},
                                                                 {"H100", "8xH100"},
                                                                 {"H200", "8xH200"},
                                                                 {"B200", "8xB200"}};
  for (const auto& [begin, spec] : kSpecs) {
    if (gpu.starts_with(begin)) {
      return spec;
    }
  }
  return "";
}

double error_at(const CollectiveCurve& curve, const CollectiveCurve::Point& point) {
  return std::abs(curve_us(curve, point.bytes) / point.us - 1);
}

void add(MeanError& to, double error) {
  to.mean = (to.mean.value_or(0) * to.sizes + error) / (to.sizes + 1);
  ++to.sizes;
}

void leave_out(CurveError& out) {
  const auto& points = out.measured.curve.points;
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    CollectiveCurve others = out.measured.curve;
    others.points.erase(others.points.begin() + static_cast<std::ptrdiff_t>(i));
    const double error = error_at(others, points[i]);
    if (points[i].bytes >= kFromHere) {
      add(out.left_out, error);
    }
    if (points[i].bytes >= kLarge) {
      add(out.left_out_large, error);
    }
  }
}

void compare_with_spec(CurveError& out) {
  out.spec = spec_of(out.measured.gpu);
  if (out.spec.empty()) {
    return;
  }
  const HardwareSpec spec = load_hardware(out.spec);
  const CollectiveCurve& measured = out.measured.curve;
  const CollectiveCurve* own = find_curve(spec.fabric.curves, measured.kind, measured.ranks);
  if (own == nullptr) {
    out.spec.clear();
    return;
  }
  for (const CollectiveCurve::Point& point : measured.points) {
    const bool used = std::any_of(own->points.begin(), own->points.end(),
                                  [&](const auto& each) { return each.bytes == point.bytes; });
    if (point.bytes >= kFromHere && !used) {
      add(out.unseen, error_at(*own, point));
    }
  }
}

}  // namespace

CollectiveTable parse_collective_table(std::string_view text, const std::string& source) {
  using Key = std::tuple<std::string, std::string, std::string, CollectiveKind, int64_t>;
  std::map<Key, std::map<Bytes, std::vector<double>>> curves;
  CollectiveTable out;
  for (const CsvRow& row : parse_csv(text, source, kCollectiveColumns)) {
    ++out.rows;
    const auto leave_out_row = [&out, &row](const std::string& why) {
      out.left_out.push_back(row.where() + ": " + why);
    };
    const auto kind = parse_collective(row.text("collective"));
    const auto ranks = row.size("n_gpus");
    const std::string& size = row.text("size_bytes");
    const bool sized = !size.empty() && size.find_first_not_of("0123456789") == std::string::npos;
    if (!kind) {
      leave_out_row(fmt::format("'{}' is no collective that is simulated", row.text("collective")));
      continue;
    }
    if (!ranks || *ranks < 2) {
      leave_out_row(fmt::format("n_gpus '{}' is not 2 or more", row.text("n_gpus")));
      continue;
    }
    if (!sized) {
      leave_out_row(fmt::format("size_bytes '{}' is not a number of bytes", size));
      continue;
    }
    const auto bytes = row.size("size_bytes");
    const auto us = time_of(row, *kind, static_cast<double>(*bytes), static_cast<double>(*ranks));
    if (!us) {
      leave_out_row("it has neither time_us nor busbw_GBs");
    } else {
      curves[{row.text("source"), row.text("gpu"), row.text("algo"), *kind, *ranks}][*bytes]
          .push_back(*us);
    }
  }
  for (auto& [key, sizes] : curves) {
    MeasuredCurve& curve = out.curves.emplace_back();
    std::tie(curve.source, curve.gpu, curve.algorithm, curve.curve.kind, std::ignore) = key;
    curve.curve.ranks = static_cast<int>(std::get<4>(key));
    for (auto& [bytes, times] : sizes) {
      curve.curve.points.push_back({bytes, median(times)});
    }
  }
  return out;
}

CollectiveTable load_collective_table(const std::filesystem::path& path) {
  return parse_collective_table(plan::read_text_file(path), path.string());
}

std::vector<CurveError> collective_errors(std::vector<MeasuredCurve> curves) {
  std::vector<CurveError> out;
  for (MeasuredCurve& each : curves) {
    CurveError& error = out.emplace_back();
    error.measured = std::move(each);
    leave_out(error);
    compare_with_spec(error);
  }
  return out;
}

}  // namespace shardlens::sim
