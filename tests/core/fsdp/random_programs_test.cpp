// Programs made at random: gradients before the optimizer are those of one process without
// sharding. SHARDLENS_PROGRAMS=FIRST:COUNT runs others than the suite's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <torch/optim/sgd.h>

#include "core/fsdp/fully_shard.h"
#include "tests/core/fsdp/random_program.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::InjectedFailure;
using test::Maze;
using test::RandomProgram;
using Event = RandomProgram::Event;
using Tensors = std::vector<at::Tensor>;

at::Tensor maze_loss(Maze& model, uint64_t data, int rank) {
  const at::Tensor x = test::seeded({3, model->width}, 1000 * data + static_cast<uint64_t>(rank));
  return model(x.to(model->in->bias.scalar_type())).to(at::kDouble).pow(2).mean();
}

// As in the module tree: a parameter with two names once.
Tensors parameters_of(const Maze& model) {
  Tensors parameters;
  for (const at::Tensor& p : model->parameters()) {
    if (std::ranges::none_of(parameters, [&](const at::Tensor& each) { return each.is_same(p); })) {
      parameters.push_back(p);
    }
  }
  return parameters;
}

void reset(const Event& event, Tensors& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& grad = parameters[i].mutable_grad();
    if (event.kind == Event::Kind::kResetSome && (event.mask >> i & 1) == 0) {
      continue;
    }
    if (!event.in_place) {
      grad = at::Tensor();
    } else if (grad.defined()) {
      grad.zero_();
    }
  }
}

// Runs an event on a model. `before`: called before each forward that a backward follows.
void run_event(const Event& event,
               Maze& model,
               Tensors& parameters,
               int rank,
               double weight,
               const std::function<void()>& before) {
  model->calls = event.calls;
  const auto evaluate = [&] {
    const at::NoGradGuard no_grad;
    maze_loss(model, event.data + 500, rank);
  };
  test::Station victim =
      event.fails < 0 ? test::Station(nullptr) : model->stations[static_cast<size_t>(event.fails)];
  switch (event.kind) {
    case Event::Kind::kMicrobatch: {
      before();
      if (event.fails >= 0) {
        victim->fail_forward = model->catches = true;
      }
      const at::Tensor loss = maze_loss(model, event.data, rank) * weight;
      if (event.fails >= 0) {
        victim->fail_forward = model->catches = false;
      }
      if (event.evaluate_between) {
        evaluate();
      }
      if (event.again) {
        loss.backward({}, /*retain_graph=*/true);
      }
      return loss.backward();
    }
    case Event::Kind::kTwoForwards: {
      before();
      const at::Tensor first = maze_loss(model, event.data, rank) * weight;
      std::reverse(model->calls.begin(), model->calls.end());
      const at::Tensor second = maze_loss(model, event.data + 700, rank) * weight;
      if (event.evaluate_between) {
        evaluate();
      }
      if (!event.apart) {
        return (first + second).backward();
      }
      first.backward();
      return second.backward();
    }
    case Event::Kind::kEvaluate:
      return evaluate();
    case Event::Kind::kForwardOnly:
      maze_loss(model, event.data, rank);
      return;
    case Event::Kind::kFailForward:
      victim->fail_forward = true;
      EXPECT_THROW(maze_loss(model, event.data, rank), InjectedFailure);
      victim->fail_forward = false;
      return;
    case Event::Kind::kFailBackward: {
      before();
      victim->fail_backward = true;
      const at::Tensor loss = maze_loss(model, event.data, rank) * weight;
      victim->fail_backward = false;
      try {
        loss.backward();  // does not throw if it does not reach the station
      } catch (const InjectedFailure&) {
      }
      return reset(event, parameters);
    }
    case Event::Kind::kResetAll:
    case Event::Kind::kResetSome:
      return reset(event, parameters);
  }
}

// What a step of one process gives, in fp64.
struct Expected {
  Tensors gradients;    // undefined: none
  double norm = 0;      // of all gradients
  double rounding = 0;  // how far the gradients of one process in fp32 are from these
};

struct Optimizers {
  Optimizers(const Tensors& parameters, uint64_t second_mask)
      : first(pick(parameters, second_mask, false), torch::optim::SGDOptions(0.1)),
        second(pick(parameters, second_mask, true), torch::optim::SGDOptions(0.05)) {}
  static Tensors pick(const Tensors& parameters, uint64_t mask, bool of_second) {
    Tensors picked;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if ((mask >> i & 1) == static_cast<uint64_t>(of_second)) {
        picked.push_back(parameters[i]);
      }
    }
    return picked;
  }
  void step(const RandomProgram::Step& of) {
    if (of.first) {
      first.step();
      first.zero_grad();
    }
    if (of.second) {
      second.step();
      second.zero_grad();
    }
  }
  torch::optim::SGD first, second;
};

uint64_t frozen_of(const RandomProgram& program) {
  Maze model(program.shape);
  const size_t count = parameters_of(model).size();
  return program.frozen & ~(uint64_t{3} << (count - 2));  // the last Linear is trained
}

std::vector<Expected> run_plain(const RandomProgram& program, at::ScalarType dtype) {
  Maze model = test::make_maze(program.shape, frozen_of(program), dtype);
  Tensors parameters = parameters_of(model);
  Optimizers optimizers(parameters, program.optimizer);
  const int ranks = program.ranks;
  std::vector<Expected> expected;
  for (const RandomProgram::Step& step : program.steps) {
    for (const Event& event : step.events) {
      for (int rank = 0; rank < ranks; ++rank) {
        run_event(event, model, parameters, rank, 1.0 / ranks, [] {});
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

class Mismatch : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

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
  Maze model =
      test::make_maze(program.shape, frozen_of(program), program.fp64 ? at::kDouble : at::kFloat);
  const auto sharded = fully_shard(model.ptr(), plan::parse_plan(program.plan, "test"),
                                   {.world = &world, .check_ledger = true});
  Tensors parameters = parameters_of(model);
  Optimizers optimizers(parameters, program.optimizer);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const RandomProgram::Step& step = program.steps[i];
    for (const Event& event : step.events) {
      run_event(event, model, parameters, world.rank(), 1, [&] {
        sharded->set_requires_gradient_sync(event.sync);
        sharded->begin_microbatch(event.last);
      });
    }
    const bool evaluated = step.events.back().kind == Event::Kind::kEvaluate;
    if (!program.fsdp1 && !evaluated && sharded->unsharded_bytes() != 0) {
      throw Mismatch("parameters are unsharded at the end of a step");
    }
    compare(program, expected[i], *sharded, parameters, i);
    if (step.clip > 0) {
      const double norm = sharded->clip_grad_norm(step.clip);
      if (!(std::abs(norm - expected[i].norm) <= 1e-5 * expected[i].norm)) {
        throw Mismatch(fmt::format("step {}: norm {}, expected {}", i, norm, expected[i].norm));
      }
    }
    optimizers.step(step);
    if (program.announces_steps) {
      sharded->optimizer_done();
    }
  }
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
    test::run_ranks(program.ranks, run, program.replicate,
                    [](dist::WorldOptions& options) { options.timeout = std::chrono::seconds(5); });
  } catch (const std::exception& failure) {
    failed(failure);
  }
  return wrong;
}

TEST(RandomProgramsTest, GradientsAreThoseOfOneProcess) {
  uint64_t first = 0, count = 50;
  const char* chosen = std::getenv("SHARDLENS_PROGRAMS");
  if (chosen != nullptr) {
    ASSERT_EQ(std::sscanf(chosen, "%lu:%lu", &first, &count), 2) << "expected FIRST:COUNT";
  }
  uint64_t failed = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const RandomProgram program = RandomProgram::make(seed);
    const std::string wrong = run_program(program);
    if (!wrong.empty() && ++failed <= 10) {
      ADD_FAILURE() << wrong << "\n" << program.described();
    } else if (!wrong.empty()) {
      ADD_FAILURE() << "program " << seed << ": " << wrong.substr(0, 200);
    }
  }
  if (chosen != nullptr) {
    std::printf("%lu of %lu programs failed\n", failed, count);
  }
}

}  // namespace
}  // namespace shardlens::fsdp
