// Programs made at random: gradients before the optimizer are those of one process without
// sharding. SHARDLENS_PROGRAMS=FIRST:COUNT runs others than the suite's.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>

#include "tests/core/fsdp/program_cases.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Maze;
using test::Mismatch;
using test::RandomProgram;
using test::Tensors;

// What a step of one process gives, in fp64.
struct Expected {
  Tensors gradients;    // undefined: none
  double norm = 0;      // of all gradients
  double rounding = 0;  // how far the gradients of one process in fp32 are from these
};

std::vector<Expected> run_plain(const RandomProgram& program, at::ScalarType dtype) {
  Maze model = test::maze_of(program, dtype);
  Tensors parameters = test::parameters_of(model);
  test::Optimizers optimizers(parameters, program.optimizer);
  const int ranks = program.ranks;
  std::vector<Expected> expected;
  for (const RandomProgram::Step& step : program.steps) {
    for (const RandomProgram::Event& event : step.events) {
      for (int rank = 0; rank < ranks; ++rank) {
        test::run_event(event, model, parameters, rank, 1.0 / ranks, [] {});
      }
    }
    Expected& now = expected.emplace_back();
    for (const at::Tensor& p : parameters) {
      const at::Tensor& grad = p.grad();
      now.gradients.push_back(grad.defined() ? grad.to(at::kDouble, false, true) : at::Tensor());
      now.norm += grad.defined() ? now.gradients.back().pow(2).sum().item<double>() : 0;
    }
    now.norm = std::sqrt(now.norm);
    for (const at::Tensor& p : parameters) {
      if (step.clip > 0 && p.grad().defined()) {
        p.grad().mul_(std::min(1.0, step.clip / (now.norm + 1e-6)));
      }
    }
    optimizers.step(step);
  }
  return expected;
}

// Norm of the differences; parameters without a gradient have zeros.
double distance(const Tensors& some, const Tensors& others) {
  double sum = 0;
  for (size_t i = 0; i < some.size(); ++i) {
    if (some[i].defined() || others[i].defined()) {
      const at::Tensor difference = !some[i].defined()     ? others[i]
                                    : !others[i].defined() ? some[i]
                                                           : some[i] - others[i];
      sum += difference.pow(2).sum().item<double>();
    }
  }
  return std::sqrt(sum);
}

std::vector<Expected> expected_of(const RandomProgram& program) {
  std::vector<Expected> expected = run_plain(program, at::kDouble);
  if (!program.fp64 || program.mixed) {
    const std::vector<Expected> rounded = run_plain(program, at::kFloat);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i].rounding = distance(rounded[i].gradients, expected[i].gradients);
    }
  }
  return expected;
}

void compare(const RandomProgram& program,
             const Expected& expected,
             const ShardedModel& sharded,
             const Tensors& parameters,
             size_t step) {
  double error = 0;
  std::string worst;
  double worst_error = 0;
  for (const ParameterSlice& slice : sharded.slices()) {
    const at::Tensor& seen = parameters[slice.parameter].grad();
    const at::Tensor& whole = expected.gradients[slice.parameter];
    at::Tensor difference = at::zeros({slice.values.numel()}, at::kDouble);
    if (seen.defined()) {
      difference += seen;
    }
    if (whole.defined()) {
      difference -= whole.reshape({-1}).narrow(0, slice.offset, slice.values.numel());
    }
    const double own = difference.pow(2).sum().item<double>();
    if (own > worst_error || std::isnan(own)) {
      worst_error = own;
      worst = sharded.plan().tree.parameters[slice.parameter].fqn;
    }
    error += own;
  }
  error = std::sqrt(error);
  const double share = program.fp64 && !program.mixed ? 1e-12 : 1e-6;
  // One process in fp32 rounds too, which a few steps can amplify beyond a millionth.
  if (!(error <= std::max(share * expected.norm + 1e-14, 2 * expected.rounding))) {
    throw Mismatch(
        fmt::format("step {}: gradients differ by {:.3g} of their norm, most in {}; those of one "
                    "process in fp32 differ by {:.3g}",
                    step, error / expected.norm, worst, expected.rounding / expected.norm));
  }
}

void run_sharded(const RandomProgram& program,
                 const std::vector<Expected>& expected,
                 dist::World& world) {
  const auto end_of_step = [&](size_t i, ShardedModel& sharded, const Tensors& parameters) {
    compare(program, expected[i], sharded, parameters, i);
    if (program.steps[i].clip > 0) {
      const double norm = sharded.clip_grad_norm(program.steps[i].clip);
      if (!(std::abs(norm - expected[i].norm) <= 1e-5 * expected[i].norm)) {
        throw Mismatch(fmt::format("step {}: norm {}, expected {}", i, norm, expected[i].norm));
      }
    }
  };
  test::train_sharded(program, world, {}, end_of_step);
}

// "" if the program gives the gradients of one process, else what is wrong: on the rank that failed
// first, since the others then lose their connection to it.
std::string run_program(const RandomProgram& program) {
  std::mutex mutex;
  std::string wrong;
  const auto failed = [&](const std::exception& failure) {
    const std::string message = failure.what();
    const std::lock_guard lock(mutex);
    if (wrong.empty()) {
      wrong = message.substr(0, message.find("\nException raised from"));
    }
  };
  try {
    const std::vector<Expected> expected = expected_of(program);
    const auto run = [&](dist::World& world) {
      try {
        run_sharded(program, expected, world);
      } catch (const std::exception& failure) {
        failed(failure);
        throw;
      }
    };
    test::run_ranks(program.ranks, run,
                    [](dist::WorldOptions& options) { options.timeout = std::chrono::seconds(5); });
  } catch (const std::exception& failure) {
    failed(failure);
  }
  return wrong;
}

TEST(RandomProgramsTest, GradientsAreThoseOfOneProcess) {
  test::run_programs(run_program);
}

}  // namespace
}  // namespace shardlens::fsdp
