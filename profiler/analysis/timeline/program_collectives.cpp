// Units of the collectives with which a program gathers its parameters itself.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/analysis/timeline/communicator_of.h"
#include "profiler/analysis/timeline/functional_waits.h"
#include "profiler/analysis/timeline/gathering_passes.h"
#include "profiler/analysis/timeline/parameter_order.h"
#include "profiler/analysis/timeline/program_compute.h"
#include "profiler/analysis/timeline/sharding_parts.h"
#include "profiler/analysis/timeline/sources.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::ShardedParameter;
using trace::Trace;

struct ProgramCall {  // a collective of the program's
  Collective* collective = nullptr;
  int64_t elements = 0;  // of a rank's part
  bool backward = false;
  std::vector<uint32_t> parameters = {};  // of Trace::sharded_parameters
};

// Forwards and backwards of the model, by what they move.
class ProgramCollectives {
 public:
  ProgramCollectives(const Sources& sources, Timeline& timeline)
      : sources_(sources),
        trace_(sources.trace),
        timeline_(timeline),
        all_(sources.trace.sharded_parameters),
        backward_(sources.trace,
                  operators_named(sources, "autograd::engine::evaluate_function"),
                  [](const Event&) { return true; }),
        waits_(sources, timeline) {
    for (const uint32_t i : operators_named(sources, "autograd::engine::evaluate_function")) {
      nodes_.push_back(trace_.events[i].start);
    }
    std::ranges::sort(nodes_);
    for (const ShardedParameter& each : all_) {
      total_ += each.elements;
      if (each.trained) {
        trained_.push_back(each);
        of_trained_.push_back(static_cast<uint32_t>(&each - all_.data()));
      }
    }
  }

  void attribute() {
    find_units();
    if (timeline_.rewritten) {
      attribute_program_compute(sources_, std::move(marks_), timeline_);
    }
    if (misfits_ > 0) {
      add_note(timeline_,
               fmt::format("collectives whose sizes do not fit the order of the model's {} sharded "
                           "parameters; they belong to no unit",
                           all_.size()),
               misfits_);
    }
  }

  // Only sets the units of collectives.
  void find_units() {
    std::map<size_t, std::vector<ProgramCall>> of_step;
    for (Collective& c : timeline_.collectives) {
      if (const auto call = call_of(c)) {
        of_step[step_of(c)].push_back(*call);
      }
    }
    for (auto& [step, calls] : of_step) {
      attribute_step(calls);
    }
  }

  [[nodiscard]] std::vector<GatheringPass> take_passes() { return std::move(passes_); }

 private:
  static std::vector<uint32_t> operators_named(const Sources& sources, std::string_view prefix) {
    std::vector<uint32_t> out;
    sources.lists.for_operators_named(
        sources.trace, [&](std::string_view name) { return name.starts_with(prefix); },
        [&](uint32_t i) { out.push_back(i); });
    return out;
  }

  // Between replicas the part of a rank is all-reduced.
  [[nodiscard]] bool may_be_of_parameters(CollectiveKind kind, int64_t ranks) const {
    return std::ranges::any_of(all_, [&](const ShardedParameter& each) {
      return kind == CollectiveKind::kAllReduce
                 ? each.replicas > 1 && (ranks == 0 || ranks == each.replicas)
                 : each.ranks > 1 && (ranks == 0 || ranks == each.ranks);
    });
  }

  [[nodiscard]] std::optional<ProgramCall> call_of(Collective& c) const {
    if (!c.kind || c.issuer == trace::kNoIndex || c.basis == Basis::kAnnotation ||
        (c.kind != CollectiveKind::kAllGather && c.kind != CollectiveKind::kReduceScatter &&
         c.kind != CollectiveKind::kAllReduce)) {
      return std::nullopt;
    }
    const auto axis = trace::axis_of(group_description(trace_, c));
    if (axis && axis != trace::ParallelAxis::kData) {
      return std::nullopt;
    }
    const Event& issuer = trace_.events[c.issuer];
    CallSize size = c.args != trace::kNoIndex ? of_arguments(trace_.collectives[c.args])
                                              : call_size(trace_, issuer);
    const int64_t most = std::max(size.in, size.out), least = std::min(size.in, size.out);
    int64_t ranks = c.ranks;
    if (ranks == 0 && c.kind != CollectiveKind::kAllReduce && least > 0) {
      ranks = most / least;
    }
    const int64_t elements = c.kind == CollectiveKind::kAllReduce ? most : least;
    // Nothing has the sizes of what a CUDA graph launched; it takes over what it repeats.
    if (elements <= 0 || !may_be_of_parameters(*c.kind, ranks)) {
      return std::nullopt;
    }
    if (c.bytes == 0) {
      if (!size.element) {  // a list of tensors has no type
        const CallSize ran = call_size(trace_, trace_.events[c.event]);
        size.dtype = ran.dtype;
        size.element = ran.element;
      }
      c.bytes = size.bytes(c.kind, ranks);
    }
    return ProgramCall{&c, elements, backward_.any_around(issuer.track, issuer.start)};
  }

  static CallSize of_arguments(const trace::CollectiveArgs& args) {
    return {args.in_nelems, args.out_nelems, std::nullopt, std::nullopt};
  }

  // By when the host called.
  [[nodiscard]] size_t step_of(const Collective& c) const {
    const Nanoseconds at = trace_.events[c.issuer].start;
    const auto after =
        std::partition_point(timeline_.steps.begin(), timeline_.steps.end(),
                             [&](const Step& step) { return step.host.start <= at; });
    return static_cast<size_t>(after - timeline_.steps.begin());
  }

  // A forward begins where a backward has ended.
  void attribute_step(std::vector<ProgramCall>& calls) {
    std::ranges::stable_sort(calls, {}, [&](const ProgramCall& each) {
      return trace_.events[each.collective->issuer].start;
    });
    if (std::ranges::none_of(calls, &ProgramCall::backward)) {
      find_backward(calls);
    }
    for (size_t begin = 0; begin < calls.size();) {
      size_t end = begin;
      while (end < calls.size() && !calls[end].backward) {
        ++end;
      }
      while (end < calls.size() && calls[end].backward) {
        ++end;
      }
      const std::span<ProgramCall> pass(calls.data() + begin, end - begin);
      for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                        CollectiveKind::kAllReduce}) {
        attribute_pass(pass, kind, false);
        attribute_pass(pass, kind, true);
      }
      mark_pass(pass);
      add_pass(pass);
      begin = end;
    }
  }

  void add_pass(std::span<const ProgramCall> calls) {
    GatheringPass& pass = passes_.emplace_back();
    for (const ProgramCall& each : calls) {
      pass.moves.push_back({static_cast<uint32_t>(each.collective - timeline_.collectives.data()),
                            each.backward, waits_.event_of(*each.collective), each.parameters});
    }
    pass.backward = backward_of_pass_;
  }

  // See [Note: Compute between collectives].
  void mark_pass(std::span<const ProgramCall> pass) {
    const auto called = [&](const ProgramCall& each) -> const Event& {
      return trace_.events[each.collective->issuer];
    };
    const std::set<uint32_t> again = gathered_again(pass);
    backward_of_pass_.reset();
    std::optional<Nanoseconds> backward;  // where the backward of the next unit begins
    std::optional<uint32_t> reduced;
    for (const ProgramCall& each : pass) {
      const Collective& c = *each.collective;
      if (each.backward && !backward) {
        backward = backward_begin(called(each));
        backward_of_pass_ = backward;
        // Until a unit is known: what is gathered again is so before it is used.
        marks_.push_back({*backward, c.unit ? Owner{Section::kBackward, *c.unit} : Owner{}});
      }
      if (!c.unit) {
        continue;
      }
      if (c.kind == CollectiveKind::kAllGather) {
        if (!each.backward || again.contains(*c.unit)) {
          marks_.push_back({waits_.begin(c).value_or(called(each).start),
                            {each.backward ? Section::kBackward : Section::kForward, *c.unit}});
        }
      } else if (c.kind == CollectiveKind::kReduceScatter && again.empty()) {
        if (reduced != c.unit) {
          marks_.push_back({*backward, {Section::kBackward, *c.unit}});
        }
        reduced = c.unit;
        backward = called(each).end();
      }
    }
    if (!pass.empty() && pass.back().backward) {
      marks_.push_back({called(pass.back()).end(), {}});
    }
  }

  // See [Note: Parts gathered again].
  [[nodiscard]] static std::set<uint32_t> gathered_again(std::span<const ProgramCall> pass) {
    std::map<uint32_t, std::array<int64_t, 2>> elements;  // by unit: in forward, in backward
    for (const ProgramCall& each : pass) {
      if (each.collective->kind == CollectiveKind::kAllGather && each.collective->unit) {
        elements[*each.collective->unit].at(each.backward ? 1 : 0) += each.elements;
      }
    }
    std::set<uint32_t> out;
    for (const auto& [unit, sums] : elements) {
      if (gathers_unit(sums[1], sums[0])) {
        out.insert(unit);
      }
    }
    return out;
  }

  // When autograd began, before the call in its backward.
  [[nodiscard]] Nanoseconds backward_begin(const Event& call) const {
    const auto node = std::ranges::upper_bound(nodes_, call.start);
    const Nanoseconds* forward = nullptr;  // the last operator of forward is before the first node
    for (auto it = node; it != nodes_.begin(); --it) {
      const Nanoseconds at = *std::prev(it);
      if (!marks_.empty() && at <= marks_.back().at) {
        break;
      }
      forward = &*std::prev(it);
    }
    return forward == nullptr ? call.start : *forward;
  }

  // One graph of forward and backward has no range of autograd: its forward ends when each
  // parameter was gathered once.
  void find_backward(std::vector<ProgramCall>& calls) const {
    int64_t gathered = 0;
    bool backward = false;
    for (ProgramCall& each : calls) {
      const bool gathers = each.collective->kind == CollectiveKind::kAllGather;
      backward = backward || !gathers || gathered >= total_;
      each.backward = backward;
      gathered += gathers ? each.elements : 0;
    }
  }

  void attribute_pass(std::span<ProgramCall> pass, CollectiveKind kind, bool backward) {
    std::vector<ProgramCall*> calls;
    std::vector<int64_t> elements;
    for (ProgramCall& each : pass) {
      if (each.collective->kind == kind && each.backward == backward) {
        calls.push_back(&each);
        elements.push_back(each.elements);
      }
    }
    if (calls.empty() || (kind == CollectiveKind::kAllReduce && !backward)) {
      return;
    }
    const auto [known, fresh] = found_.try_emplace({kind, backward, elements});
    if (fresh) {
      known->second = moved_parameters(
          elements, kind == CollectiveKind::kAllGather ? all_ : trained_, backward);
    }
    const std::vector<MovedParameters>& moved = known->second;
    if (moved.empty()) {
      misfits_ += static_cast<int64_t>(calls.size());
      return;
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      Collective& c = *calls[i]->collective;
      const bool all = kind == CollectiveKind::kAllGather;
      for (const uint32_t index : moved[i].parameters) {
        calls[i]->parameters.push_back(all ? index : of_trained_[index]);
      }
      timeline_.rewritten = true;
      set_purpose(c, sharding_purpose(kind), backward);
      c.needed_at = waits_.after(c);
      if (moved[i].ambiguous) {
        c.basis = Basis::kAmbiguous;
        c.section = Section::kAmbiguous;
        continue;
      }
      c.basis = Basis::kOrder;
      c.unit = unit_named(moved[i].unit, timeline_);
      if (moved[i].module != moved[i].unit) {
        c.module = module_named(moved[i].module);
      }
    }
  }

  uint32_t module_named(const std::string& name) {
    const auto [known, fresh] =
        modules_.emplace(name, static_cast<uint32_t>(timeline_.modules.size()));
    if (fresh) {
      timeline_.modules.push_back(name);
    }
    return known->second;
  }

  const Sources& sources_;
  const Trace& trace_;
  Timeline& timeline_;
  const std::vector<ShardedParameter>& all_;
  std::vector<ShardedParameter> trained_;
  std::vector<uint32_t> of_trained_;  // their indices in `all_`
  int64_t total_ = 0;                 // elements of all
  RangeFinder backward_;
  std::vector<Nanoseconds> nodes_;  // starts of autograd's nodes
  FunctionalWaits waits_;
  // By what is the same in each step.
  std::map<std::tuple<CollectiveKind, bool, std::vector<int64_t>>, std::vector<MovedParameters>>
      found_;
  std::map<std::string, uint32_t> modules_;
  int64_t misfits_ = 0;
  std::vector<OwnerMark> marks_;
  std::optional<Nanoseconds> backward_of_pass_;  // when that of the last marked pass began
  std::vector<GatheringPass> passes_;
};

}  // namespace

void attribute_program_collectives(const Sources& sources, Timeline& timeline) {
  if (!sources.trace.sharded_parameters.empty() && timeline.fsdp.source == FsdpSource::kNone &&
      timeline.ddp.passes.empty()) {
    ProgramCollectives(sources, timeline).attribute();
  }
}

std::vector<GatheringPass> gathering_passes(const Trace& trace, const Timeline& timeline) {
  Timeline own = timeline;  // units are found again, in a copy
  const Sources sources(trace, own.lists, {});
  ProgramCollectives program(sources, own);
  program.find_units();
  return program.take_passes();
}

}  // namespace shardlens::analysis
