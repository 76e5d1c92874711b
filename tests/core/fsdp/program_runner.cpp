#include "tests/core/fsdp/program_runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>

#include "core/plan/plan.h"

namespace shardlens::test {
namespace {

using Event = RandomProgram::Event;

at::Tensor maze_loss(Maze& model, uint64_t data, int rank) {
  const at::Tensor x = seeded({3, model->width}, 1000 * data + static_cast<uint64_t>(rank));
  return model(x.to(model->out->bias.options())).to(at::kDouble).pow(2).mean();
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

}  // namespace

Tensors parameters_of(const Maze& model) {
  Tensors parameters;
  for (const at::Tensor& p : model->parameters()) {
    if (std::ranges::none_of(parameters, [&](const at::Tensor& each) { return each.is_same(p); })) {
      parameters.push_back(p);
    }
  }
  return parameters;
}

void run_event(const RandomProgram::Event& event,
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
  Station victim =
      event.fails < 0 ? Station(nullptr) : model->stations[static_cast<size_t>(event.fails)];
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
      try {
        maze_loss(model, event.data, rank);
      } catch (const InjectedFailure&) {
        victim->fail_forward = false;
        return;
      }
      throw Mismatch("the exception did not leave the forward");
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

uint64_t frozen_of(const RandomProgram& program) {
  Maze model(program.shape);
  const size_t count = parameters_of(model).size();
  return program.frozen & ~(uint64_t{3} << (count - 2));  // the last Linear is trained
}

Maze maze_of(const RandomProgram& program, at::ScalarType dtype) {
  const uint64_t frozen = frozen_of(program);
  return make_maze(program.shape, frozen, dtype,
                   {program.other.parameters & frozen, program.other.dtype});
}

void train_sharded(const RandomProgram& program,
                   dist::World& world,
                   const Place& place,
                   const EndOfStep& end_of_step) {
  Maze model = maze_of(program, program.fp64 ? at::kDouble : at::kFloat);
  place.bring(*model);
  const auto sharded = fsdp::fully_shard(model.ptr(), plan::parse_plan(program.plan, "test"),
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
    end_of_step(i, *sharded, parameters);
    optimizers.step(step);
    if (program.announces_steps) {
      sharded->optimizer_done();
    }
  }
}

namespace {

struct StepOutcome {
  Tensors gradients;  // by slice; undefined: none
  Tensors values;
  double norm = 0;
};

std::vector<StepOutcome> run_in(const RandomProgram& program, const Place& place) {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = program.ranks;
  options.rank = static_cast<int>(program.seed / 3) % program.ranks;
  options.device = place.device;
  const auto world = dist::World::join(options);
  std::vector<StepOutcome> steps;
  train_sharded(program, *world, place,
                [&](size_t i, fsdp::ShardedModel& sharded, const Tensors& parameters) {
                  StepOutcome& now = steps.emplace_back();
                  for (const fsdp::ParameterSlice& slice : sharded.slices()) {
                    now.gradients.push_back(on_host(parameters[slice.parameter].grad()));
                    now.values.push_back(on_host(slice.values));
                  }
                  if (program.steps[i].clip > 0) {
                    now.norm = sharded.clip_grad_norm(program.steps[i].clip);
                  }
                });
  return steps;
}

}  // namespace

void compare_with_cpu(const RandomProgram& program, const Place& place, double share) {
  const std::vector<StepOutcome> expected = run_in(program, {});
  const std::vector<StepOutcome> seen = run_in(program, place);
  for (size_t i = 0; i < expected.size(); ++i) {
    compare(seen[i].gradients, expected[i].gradients, share, fmt::format("step {}: gradients", i));
    compare(seen[i].values, expected[i].values, share, fmt::format("step {}: parameters", i));
    if (!(std::abs(seen[i].norm - expected[i].norm) <= std::max(1e-5, share) * expected[i].norm)) {
      throw Mismatch(
          fmt::format("step {}: norm {}, expected {}", i, seen[i].norm, expected[i].norm));
    }
  }
}

std::optional<ProgramRange> ProgramRange::parse(const char* text) {
  ProgramRange range;
  if (std::sscanf(text, "%lu:%lu", &range.first, &range.count) != 2) {
    return std::nullopt;
  }
  return range;
}

}  // namespace shardlens::test
