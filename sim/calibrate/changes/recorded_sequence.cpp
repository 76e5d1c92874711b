#include "sim/calibrate/changes/recorded_sequence.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using plan::Communication;
using plan::Operator;

// A number at two lengths, and at a third one. See [Note: Sequence of a recorded pass].
class Growth {
 public:
  Growth(int64_t first, int64_t second, int64_t to)
      : a_(static_cast<double>(first)),
        b_(static_cast<double>(second)),
        to_(static_cast<double>(to)) {}

  void grow(int64_t& at_first, int64_t at_second) const {
    if (at_first == at_second) {
      return;
    }
    const auto u = static_cast<double>(at_first), v = static_cast<double>(at_second);
    const double quadratic = (v / b_ - u / a_) / (b_ - a_);
    const double linear = u / a_ - quadratic * a_;
    const double slope = (v - u) / (b_ - a_);
    // Numbers are whole, so that a sum without one of the parts seems to have a little of it.
    const double unsure = 2 / std::min(a_, b_);
    const bool sums = quadratic * a_ >= -unsure && linear >= -unsure;
    const double value = sums ? linear * to_ + quadratic * to_ * to_ : u + slope * (to_ - a_);
    at_first = std::max<int64_t>(
        0, std::llround(std::min(value, static_cast<double>(plan::kMostOfOperator))));
  }

 private:
  double a_, b_, to_;
};

[[noreturn]] void refuse(const Observation& first,
                         const Observation& second,
                         const std::string& what) {
  throw InputError(second.source,
                   fmt::format("{}; expected a recording of the program of {} that differs in the "
                               "length of its sequences only",
                               what, first.source));
}

}  // namespace

OtherSequence other_sequence(const Observation& first, const Observation& second) {
  for (const Observation* each : {&first, &second}) {
    if (!each->settings.seq) {
      throw InputError(each->source, "the run does not say the length of its sequences");
    }
  }
  const plan::StepSettings &a = first.settings, &b = second.settings;
  if (a.seq == b.seq) {
    refuse(first, second, fmt::format("its sequences have {} tokens too", *b.seq));
  }
  if (a.batch != b.batch || a.accumulate != b.accumulate) {
    refuse(first, second,
           fmt::format("it has {} microbatches of {} samples instead of {} of {}", b.accumulate,
                       b.batch, a.accumulate, a.batch));
  }
  if (first.plan.world_size != second.plan.world_size) {
    refuse(first, second,
           fmt::format("it has {} ranks instead of {}", second.plan.world_size,
                       first.plan.world_size));
  }
  const std::vector<Operator>&of_first = first.workload.operators,
        &of_second = second.workload.operators;
  const auto same = [](const Operator& x, const Operator& y) {
    return x.name == y.name && x.phase == y.phase && x.unit == y.unit && x.kind == y.kind;
  };
  const size_t common = std::min(of_first.size(), of_second.size());
  for (size_t i = 0; i < common; ++i) {
    if (!same(of_first[i], of_second[i])) {
      refuse(first, second,
             fmt::format("operator {} of a pass is {} instead of {}", i, of_second[i].name,
                         of_first[i].name));
    }
  }
  if (first.workload.order != second.workload.order ||
      first.workload.hooks.size() != second.workload.hooks.size()) {
    refuse(
        first, second,
        fmt::format("a pass has {} operators and {} collectives of its own instead of {} and {}, "
                    "or another order of them",
                    of_second.size(), second.workload.communications.size(), of_first.size(),
                    first.workload.communications.size()));
  }
  return {second.source, *b.seq, second.workload};
}

plan::Workload with_sequence(const plan::Workload& recorded,
                             int64_t from,
                             const OtherSequence& other,
                             int64_t to) {
  plan::Workload out = recorded;
  out.seq = to;
  const Growth growth(from, other.seq, to);
  for (size_t i = 0; i < out.operators.size(); ++i) {
    Operator& op = out.operators[i];
    const Operator& longer = other.workload.operators[i];
    for (const auto number : {&Operator::batch, &Operator::m, &Operator::n, &Operator::k,
                              &Operator::flops, &Operator::read, &Operator::written,
                              &Operator::saved, &Operator::frees, &Operator::scratch}) {
      growth.grow(op.*number, longer.*number);
    }
    if (!plan::dimensions_fit(op)) {
      throw InputError("--seq", fmt::format("{} tokens are too many for {}", to, op.name));
    }
  }
  for (size_t i = 0; i < out.communications.size(); ++i) {
    Communication& each = out.communications[i];
    const Communication& longer = other.workload.communications[i];
    for (const auto number : {&Communication::bytes, &Communication::written, &Communication::saved,
                              &Communication::frees}) {
      growth.grow(each.*number, longer.*number);
    }
  }
  return out;
}

}  // namespace shardlens::sim
