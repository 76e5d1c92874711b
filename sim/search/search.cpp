#include "sim/search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/mesh_sizes.h"
#include "sim/scenario/predict.h"
#include "sim/search/evaluator.h"

namespace shardlens::sim {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kSame = 0.001;  // step times that differ less are called equal

// Whether both have the same units, checkpoints and shards.
bool same_sizes(const Candidate& a, const Candidate& b) {
  return a.blocks_per_unit == b.blocks_per_unit && a.checkpoint == b.checkpoint &&
         a.shard == b.shard && a.precision == b.precision;
}

class Searcher {
 public:
  Searcher(const Scenario& scenario, const SearchOptions& options, std::vector<Candidate> all)
      : scenario_(scenario),
        target_(limited(scenario.machine->target(), options.memory_limit)),
        ranks_(scenario.world_size),
        options_(options),
        all_(std::move(all)),
        outcomes_(all_.size()),
        refusals_(all_.size()) {
    for (size_t begin = 0; begin < all_.size();) {
      size_t end = begin + 1;
      while (end < all_.size() && same_sizes(all_[end], all_[begin])) {
        ++end;
      }
      shares_.push_back({begin, end});
      begin = end;
    }
  }

  SearchResult run() {
    std::vector<std::thread> workers;
    const unsigned threads =
        options_.threads > 0 ? options_.threads : std::max(1U, std::thread::hardware_concurrency());
    left_.resize(threads);
    left_.front() = {0, shares_.size()};
    for (unsigned i = 1; i < threads; ++i) {
      workers.emplace_back([this, i] { work(i); });
    }
    work(0);
    for (std::thread& worker : workers) {
      worker.join();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return result();
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
    [[nodiscard]] size_t size() const { return end - begin; }
  };

  // [Note: Shares] Successive candidates share much work (evaluator.h), so a thread takes adjacent
  // shares one after the other. When it has none left, it takes the later half of the shares of the
  // thread that has most.
  std::optional<Range> take_share(unsigned worker) {
    const std::lock_guard lock(mutex_);
    Range& own = left_[worker];
    if (own.size() == 0) {
      Range& most =
          *std::max_element(left_.begin(), left_.end(),
                            [](const Range& a, const Range& b) { return a.size() < b.size(); });
      const size_t middle = most.begin + most.size() / 2;
      own = {middle, most.end};
      most.end = middle;
    }
    return own.size() == 0 ? std::nullopt : std::optional(shares_[own.begin++]);
  }

  void work(unsigned worker) {
    try {
      Evaluator evaluator(scenario_, target_);
      while (const std::optional<Range> share = take_share(worker)) {
        for (size_t k = share->begin; k < share->end; ++k) {
          if (stopped_ || (options_.cancelled != nullptr && *options_.cancelled)) {
            stopped_ = true;
            return;
          }
          try {
            outcomes_[k] = outcome_of(all_[k], evaluator);
          } catch (const InputError& refusal) {
            refusals_[k] = refusal;
            continue;
          }
          if (!outcomes_[k]->fits) {
            k = last_of_pruned(k);
          }
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ ? failure_ : std::current_exception();
      stopped_ = true;
    }
  }

  // See [Note: Pruning]. `k` does not fit: returns the last candidate to skip, which is the last
  // but one of those with larger microbatches.
  [[nodiscard]] size_t last_of_pruned(size_t k) const {
    size_t last = k;
    while (last + 1 < all_.size() && all_[last + 1].batch > all_[last].batch) {
      ++last;
    }
    return last == k ? k : last - 1;
  }

  Outcome outcome_of(const Candidate& candidate, Evaluator& evaluator) {
    const auto known = options_.known.empty() ? options_.known.end()
                                              : options_.known.find(name_of(candidate, ranks_));
    if (known != options_.known.end()) {
      const std::lock_guard lock(mutex_);
      ++done_;
      return known->second;
    }
    const Outcome outcome = evaluator.evaluate(candidate);
    const std::lock_guard lock(mutex_);
    ++done_;
    if (options_.on_progress) {
      options_.on_progress({candidate, outcome}, done_, all_.size());
    }
    return outcome;
  }

  SearchResult result() {
    SearchResult out;
    out.all = all_.size();
    out.cancelled = stopped_;
    std::vector<Found> found;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (refusals_[i]) {
        out.refusal = out.refused++ == 0 ? refusals_[i]->what() : out.refusal;
      }
      if (outcomes_[i]) {
        ++out.evaluated;
        found.push_back({all_[i], *outcomes_[i]});
      }
    }
    if (out.refused > 0 && out.evaluated == 0) {
      throw **std::find_if(refusals_.begin(), refusals_.end(),
                           [](const auto& each) { return each.has_value(); });
    }
    out.pruned = out.cancelled ? 0 : out.all - out.evaluated - out.refused;
    out.pareto = pareto_front(found);
    for (const Precision& precision : options_.precisions) {
      out.by_precision.push_back({precision, best_of(precision, found)});
    }
    if (const Found* best = out.best()) {
      out.why = why(*best, found);
    }
    return out;
  }

  [[nodiscard]] static std::optional<Found> best_of(const Precision& precision,
                                                    std::vector<Found> found) {
    std::erase_if(
        found, [&precision](const Found& each) { return each.candidate.precision != precision; });
    const std::vector<Found> front = pareto_front(std::move(found));
    return front.empty() ? std::nullopt : std::optional(front.front());
  }

  // Compares the fastest candidate with the usual plan in its precision: every block a unit,
  // sharded over all ranks, with the fastest candidate's microbatch or, if that does not fit, the
  // largest that does.
  [[nodiscard]] std::string why(const Found& best, const std::vector<Found>& found) const {
    const Found* usual = nullptr;
    for (const Found& each : found) {
      const Candidate& c = each.candidate;
      const bool is_usual = c.blocks_per_unit == 1 && c.shard == ranks_ && c.reshard &&
                            c.backward_prefetch && c.forward_prefetch == 0 && !c.checkpoint &&
                            c.precision == best.candidate.precision;
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
  std::vector<Candidate> all_;
  std::vector<std::optional<Outcome>> outcomes_;
  std::vector<std::optional<InputError>> refusals_;
  std::vector<Range> shares_;  // ranges of all_
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Range> left_;  // remaining ranges of shares_, by thread
  size_t done_ = 0;
  std::exception_ptr failure_;
};

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

// A search that found nothing, and the one after it.
SearchResult sum_of(const SearchResult& before, SearchResult out) {
  out.all += before.all;
  out.evaluated += before.evaluated;
  out.pruned += before.pruned;
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

SearchResult search(const Scenario& scenario, const SearchOptions& options) {
  if (scenario.model->run() != nullptr && scenario.model->config() == nullptr) {
    throw InputError(scenario.model->run()->observation().source,
                     "the traces do not contain the model, which a search needs to try other "
                     "batches and units; search with --model");
  }
  if (const auto [axis, size] = plan::divided_axis(scenario.plan.mesh); size > 1) {
    throw InputError(
        fmt::format("{}#/mesh/{}", scenario.plan.source, axis),
        fmt::format("{} {}: search tries meshes of replicate and shard only; expected 1", axis,
                    size));
  }
  std::vector<Candidate> all = with_precisions(
      candidates(scenario.model->tree(), scenario.world_size, scenario.step.samples()),
      options.precisions);
  SearchResult out = Searcher(scenario, options, all).run();
  if (out.best() != nullptr || out.cancelled || scenario.plan.cpu_offload) {
    return out;
  }
  for (Candidate& each : all) {
    each.cpu_offload = true;
  }
  try {
    return sum_of(out, Searcher(scenario, options, std::move(all)).run());
  } catch (const InputError&) {
    return out;  // the machine has no measurements of copies to the host
  }
}

}  // namespace shardlens::sim
