#include "sim/search/search.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/mesh_sizes.h"
#include "sim/scenario/predict.h"
#include "sim/search/full_search.h"
#include "sim/search/mesh_search.h"

namespace shardlens::sim {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kSame = 0.001;  // step times that differ less are called equal

// The candidates in each of the precisions; without any, as they are.
std::vector<Candidate> with_precisions(std::vector<Candidate> all,
                                       const std::vector<Precision>& precisions) {
  if (precisions.empty()) {
    return all;
  }
  std::vector<Candidate> out;
  out.reserve(all.size() * precisions.size());
  for (const Precision& precision : precisions) {
    for (Candidate& each : all) {
      each.precision = precision;
      out.push_back(each);
    }
  }
  return out;
}

constexpr size_t kRound = 4;  // meshes that are searched with the same limits
constexpr Nanoseconds kNoLimit = std::numeric_limits<Nanoseconds>::max();

// Searches the meshes of a space, without offload or with it.
class Searcher {
 public:
  Searcher(const Scenario& scenario, const SearchOptions& options, bool offload)
      : scenario_(scenario),
        target_(limited(scenario.machine->target(), options.memory_limit)),
        ranks_(scenario.world_size),
        options_(options),
        offload_(offload),
        precisions_(options.precisions.begin(), options.precisions.end()) {
    if (precisions_.empty()) {
      precisions_.emplace_back();
    }
    const plan::ModelConfig* config = scenario.model->config();
    meshes_ = meshes(ranks_, options.meshes, config != nullptr && config->experts.count > 0);
    const auto data_parallel = static_cast<size_t>(std::ranges::count_if(
        meshes_, [](const plan::MeshSizes& mesh) { return plan::divided_axis(mesh).second == 1; }));
    in_full_ = options.meshes.only ? 1 : data_parallel;
  }

  SearchResult run() {
    std::vector<std::vector<Candidate>> others;  // by mesh from in_full_ on
    std::vector<Candidate> first;
    if (in_full_ > 0) {
      first = candidates_of(std::span(meshes_).first(in_full_));
    }
    size_t all = first.size();
    for (size_t i = in_full_; i < meshes_.size(); ++i) {
      others.push_back(candidates_of(std::span(meshes_).subspan(i, 1)));
      all += others.back().size();
    }
    Predictions predictions(options_, ranks_, all);
    take(predict_all(scenario_, target_, options_, std::move(first), predictions));
    search_by_bounds(others, predictions);
    return result();
  }

 private:
  // The samples of a data-parallel rank; nullopt: those of a step cannot be divided so.
  [[nodiscard]] std::optional<int64_t> samples_on(const plan::MeshSizes& mesh) const {
    const int64_t all = samples_of_step(scenario_), ranks = data_parallel_ranks(ranks_, mesh);
    return all % ranks == 0 ? std::optional(all / ranks) : std::nullopt;
  }

  [[nodiscard]] std::vector<Candidate> candidates_of(
      std::span<const plan::MeshSizes> of_meshes) const {
    const std::optional<int64_t> samples = samples_on(of_meshes.front());
    if (!samples) {
      return {};
    }
    std::vector<Candidate> out = with_precisions(
        candidates(scenario_.model->tree(), of_meshes, *samples), options_.precisions);
    for (Candidate& each : out) {
      each.cpu_offload = offload_;
    }
    return out;
  }

  // What is known of the meshes that are searched in full.
  void take(const PredictedList& list) {
    out_.cancelled = list.cancelled;
    for (size_t i = 0; i < in_full_; ++i) {
      MeshResult& mesh = out_.meshes.emplace_back();
      mesh.mesh = meshes_[i];
      mesh.samples = samples_on(mesh.mesh).value_or(0);
    }
    for (size_t i = 0; i < list.candidates.size(); ++i) {
      MeshResult& mesh =
          *std::ranges::find(out_.meshes, mesh_of(list.candidates[i], ranks_), &MeshResult::mesh);
      ++mesh.all;
      if (list.refusals[i]) {
        ++mesh.refused;
        mesh.refusal = mesh.refusal.empty() ? list.refusals[i]->what() : mesh.refusal;
        refusal_ = refusal_ ? refusal_ : list.refusals[i];
      }
      if (list.outcomes[i]) {
        ++mesh.evaluated;
        found_.push_back({list.candidates[i], *list.outcomes[i]});
      }
    }
    for (MeshResult& mesh : out_.meshes) {
      mesh.pruned = out_.cancelled ? 0 : mesh.all - mesh.evaluated - mesh.refused;
      mesh.best = best_of(
          found_, [&](const Candidate& each) { return mesh_of(each, ranks_) == mesh.mesh; });
      mesh.end = mesh.best                                               ? MeshEnd::kSearched
                 : out_.cancelled                                        ? MeshEnd::kNotReached
                 : mesh.evaluated + mesh.pruned > 0 || mesh.refused == 0 ? MeshEnd::kTooLarge
                                                                         : MeshEnd::kRefused;
    }
  }

  // The limits of further searches, by precision: the fastest plan of the last of the best meshes.
  [[nodiscard]] std::vector<Nanoseconds> limits(const std::vector<MeshSearch>& searches) const {
    std::vector<Nanoseconds> out;
    for (size_t p = 0; p < precisions_.size(); ++p) {
      std::vector<Nanoseconds> best;
      for (size_t i = 0; i < in_full_; ++i) {
        const std::optional<Found> of_mesh = best_of(found_, [&](const Candidate& each) {
          return each.precision == precisions_[p] && mesh_of(each, ranks_) == meshes_[i];
        });
        if (of_mesh) {
          best.push_back(of_mesh->outcome.figures.duration());
        }
      }
      for (const MeshSearch& each : searches) {
        if (const std::optional<Nanoseconds> of_mesh = each.best(p)) {
          best.push_back(*of_mesh);
        }
      }
      std::ranges::sort(best);
      out.push_back(best.size() < kBestMeshes ? kNoLimit : best[kBestMeshes - 1]);
    }
    return out;
  }

  // See [Note: Meshes].
  void search_by_bounds(const std::vector<std::vector<Candidate>>& candidates,
                        Predictions& predictions) {
    if (out_.cancelled || candidates.empty()) {
      return;
    }
    std::vector<MeshSearch> searches;
    for (size_t i = in_full_; i < meshes_.size(); ++i) {
      searches.emplace_back(scenario_, target_, predictions, meshes_[i],
                            samples_on(meshes_[i]).value_or(0));
    }
    const unsigned threads = threads_of(options_);
    on_threads(threads, searches.size(),
               [&](size_t i) { searches[i].bound(candidates[i], precisions_); });
    std::vector<size_t> order;
    for (size_t i = 0; i < searches.size(); ++i) {
      if (searches[i].least()) {
        order.push_back(i);
      }
    }
    std::ranges::stable_sort(order, {}, [&](size_t i) { return *searches[i].least(); });
    for (size_t begin = 0; begin < order.size() && !predictions.cancelled(); begin += kRound) {
      const std::vector<Nanoseconds> now = limits(searches);
      on_threads(threads, std::min(kRound, order.size() - begin),
                 [&](size_t i) { searches[order[begin + i]].search(now); });
    }
    for (const MeshSearch& each : searches) {
      out_.meshes.push_back(each.result());
      out_.cancelled = out_.cancelled || each.cancelled() || each.least();
      found_.insert(found_.end(), each.found().begin(), each.found().end());
    }
  }

  SearchResult result() {
    for (MeshResult& each : out_.meshes) {
      if (each.samples == 0) {
        each.end = MeshEnd::kRefused;
        each.refusal =
            fmt::format("{} samples of a step cannot be divided over {} data-parallel ranks",
                        samples_of_step(scenario_), data_parallel_ranks(ranks_, each.mesh));
      }
      out_.all += each.all;
      out_.evaluated += each.evaluated;
      out_.pruned += each.pruned;
      out_.slower += each.slower;
      out_.refused += each.refused;
      out_.refusal = out_.refusal.empty() && each.refused > 0 ? each.refusal : out_.refusal;
    }
    if (out_.refused > 0 && out_.evaluated == 0 && refusal_) {
      throw InputError(*refusal_);
    }
    out_.not_tried = not_tried(scenario_, options_.meshes);
    out_.pareto = pareto_front(found_);
    for (const Precision& precision : options_.precisions) {
      out_.by_precision.push_back({precision, best_of(found_, [&precision](const Candidate& each) {
                                     return each.precision == precision;
                                   })});
    }
    if (const Found* best = out_.best()) {
      out_.why = why(*best, found_);
    }
    return std::move(out_);
  }

  // The fastest of these candidates that fits.
  template <typename Of>
  [[nodiscard]] static std::optional<Found> best_of(const std::vector<Found>& found, const Of& of) {
    std::vector<Found> some;
    std::ranges::copy_if(found, std::back_inserter(some),
                         [&of](const Found& each) { return of(each.candidate); });
    const std::vector<Found> front = pareto_front(std::move(some));
    return front.empty() ? std::nullopt : std::optional(front.front());
  }

  // Compares the fastest candidate with the usual plan in its precision: every block a unit,
  // sharded over all ranks, with the fastest candidate's microbatch or, if that does not fit, the
  // largest that does.
  [[nodiscard]] std::string why(const Found& best, const std::vector<Found>& found) const {
    const Found* usual = nullptr;
    for (const Found& each : found) {
      const Candidate& c = each.candidate;
      const bool is_usual = c.blocks_per_unit == 1 && c.shard == ranks_ && c.expert == 1 &&
                            c.reshard && c.backward_prefetch && c.forward_prefetch == 0 &&
                            !c.checkpoint && c.precision == best.candidate.precision;
      if (is_usual && each.outcome.fits && c.batch <= best.candidate.batch) {
        usual = &each;
      }
    }
    const double reserved = static_cast<double>(best.outcome.peak_reserved) / kGiB;
    std::string out = name_of(best.candidate, ranks_);
    out += target_.memory == 0
               ? fmt::format(
                     ": the fastest (it reserves {:.1f} GiB; how much memory the machine "
                     "has is not known)",
                     reserved)
               : fmt::format(": the fastest that fits in {:.1f} GiB (it reserves {:.1f})",
                             static_cast<double>(target_.memory) / kGiB, reserved);
    if (best.candidate.cpu_offload) {
      out += "; without CPU offload nothing fits";
    }
    if (usual == nullptr) {
      return out + "; sharding every block over all ranks without checkpoints does not fit.";
    }
    if (usual->candidate == best.candidate) {
      return out + "; it is the usual plan.";
    }
    const StepFigures &a = usual->outcome.figures, &b = best.outcome.figures;
    struct Part {
      const char* name;
      Nanoseconds before, after;
    };
    const std::array<Part, 4> parts{{{"exposed communication", a.exposed_comm, b.exposed_comm},
                                     {"compute", a.compute, b.compute},
                                     {"exposed copies", a.exposed_copy, b.exposed_copy},
                                     {"idle", a.idle, b.idle}}};
    const Part& most = *std::max_element(
        parts.begin(), parts.end(),
        [](const Part& x, const Part& y) { return x.before - x.after < y.before - y.after; });
    const double gain = 1 - static_cast<double>(b.duration()) / static_cast<double>(a.duration());
    const std::string other = name_of(usual->candidate, ranks_);
    if (gain < kSame) {
      return out + fmt::format("; {} is as fast to {:.1f} %.", other, 100 * kSame);
    }
    return out + fmt::format(
                     "; {:.1f} % faster than {}, mostly because {} is {:.3f} ms instead of "
                     "{:.3f} ms.",
                     100 * gain, other, most.name, static_cast<double>(most.after) * 1e-6,
                     static_cast<double>(most.before) * 1e-6);
  }

  const Scenario& scenario_;
  Target target_;  // the machine's, with the memory limit
  int64_t ranks_;
  const SearchOptions& options_;
  bool offload_;
  std::vector<std::optional<Precision>> precisions_;
  std::vector<plan::MeshSizes> meshes_;
  size_t in_full_ = 0;  // the first ones are searched in full
  std::vector<Found> found_;
  std::optional<InputError> refusal_;
  SearchResult out_;
};

// A search that found nothing, and the one after it.
SearchResult sum_of(const SearchResult& before, SearchResult out) {
  out.all += before.all;
  out.evaluated += before.evaluated;
  out.pruned += before.pruned;
  out.slower += before.slower;
  out.refused += before.refused;
  out.refusal = before.refusal.empty() ? out.refusal : before.refusal;
  return out;
}

}  // namespace

std::vector<Found> pareto_front(std::vector<Found> found) {
  std::erase_if(found, [](const Found& each) { return !each.outcome.fits; });
  const auto key = [](const Found& each) {
    return std::tuple(each.outcome.figures.duration(), each.outcome.peak_reserved,
                      each.outcome.figures.exposed_comm);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&key](const Found& a, const Found& b) { return key(a) < key(b); });
  std::vector<Found> front;
  for (const Found& each : found) {
    const bool beaten = std::any_of(front.begin(), front.end(), [&](const Found& other) {
      return other.outcome.peak_reserved <= each.outcome.peak_reserved &&
             other.outcome.figures.exposed_comm <= each.outcome.figures.exposed_comm;
    });
    if (!beaten) {
      front.push_back(each);
    }
  }
  return front;
}

Target limited(Target target, Bytes limit) {
  const Bytes own = std::max<Bytes>(1, target.available());  // 0 would be unlimited
  target.memory = target.memory == 0 ? limit : limit == 0 ? own : std::min(own, limit);
  target.outside_memory = {};
  return target;
}

std::string_view name_of(MeshEnd end) {
  switch (end) {
    case MeshEnd::kNotReached:
      return "not_reached";
    case MeshEnd::kSearched:
      return "searched";
    case MeshEnd::kRefused:
      return "refused";
    case MeshEnd::kTooLarge:
      return "does_not_fit";
    case MeshEnd::kSlower:
      return "slower";
  }
  return "";
}

SearchResult search(const Scenario& scenario, const SearchOptions& options) {
  const bool recorded = scenario.model->run() != nullptr;
  if (recorded && scenario.model->config() == nullptr) {
    throw InputError(scenario.model->run()->observation().source,
                     "the traces do not contain the model, which a search needs to try other "
                     "batches and units; search with --model");
  }
  if (const auto [axis, size] = plan::divided_axis(scenario.plan.mesh); recorded && size > 1) {
    throw InputError(
        fmt::format("{}#/mesh/{}", scenario.plan.source, axis),
        fmt::format("{} {}: a search of a recorded run tries meshes of replicate and shard only; "
                    "expected 1",
                    axis, size));
  }
  SearchResult out = Searcher(scenario, options, false).run();
  if (out.best() != nullptr || out.cancelled || scenario.plan.cpu_offload) {
    return out;
  }
  try {
    return sum_of(out, Searcher(scenario, options, true).run());
  } catch (const InputError&) {
    return out;  // the machine has no measurements of copies to the host
  }
}

}  // namespace shardlens::sim
