#include "sim/search/full_search.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace shardlens::sim {
namespace {

// Whether both have the same units, checkpoints and mesh.
bool same_sizes(const Candidate& a, const Candidate& b) {
  return a.blocks_per_unit == b.blocks_per_unit && a.checkpoint == b.checkpoint &&
         a.shard == b.shard && a.context == b.context && a.tensor == b.tensor &&
         a.expert == b.expert && a.precision == b.precision;
}

class FullSearch {
 public:
  FullSearch(const Scenario& scenario,
             const Target& target,
             std::vector<Candidate> all,
             Predictions& predictions)
      : scenario_(scenario), target_(target), predictions_(predictions) {
    out_.candidates = std::move(all);
    const std::vector<Candidate>& candidates = out_.candidates;
    out_.outcomes.resize(candidates.size());
    out_.refusals.resize(candidates.size());
    for (size_t begin = 0; begin < candidates.size();) {
      size_t end = begin + 1;
      while (end < candidates.size() && same_sizes(candidates[end], candidates[begin])) {
        ++end;
      }
      shares_.push_back({begin, end});
      begin = end;
    }
  }

  PredictedList run(unsigned threads) {
    left_.resize(threads);
    left_.front() = {0, shares_.size()};
    on_threads(threads, threads, [this](size_t worker) { work(worker); });
    out_.cancelled = stopped_;
    return std::move(out_);
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
    [[nodiscard]] size_t size() const { return end - begin; }
  };

  // [Note: Shares] Successive candidates share much work (evaluator.h), so a thread takes adjacent
  // shares one after the other. When it has none left, it takes the later half of the shares of the
  // thread that has most.
  std::optional<Range> take_share(size_t worker) {
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

  void work(size_t worker) {
    try {
      Evaluator evaluator(scenario_, target_);
      while (const std::optional<Range> share = take_share(worker)) {
        for (size_t k = share->begin; k < share->end; ++k) {
          if (stopped_ || predictions_.cancelled()) {
            stopped_ = true;
            return;
          }
          try {
            out_.outcomes[k] = predictions_.of(out_.candidates[k], evaluator);
          } catch (const InputError& refusal) {
            out_.refusals[k] = refusal;
            continue;
          }
          if (!out_.outcomes[k]->fits) {
            k = last_of_pruned(k);
          }
        }
      }
    } catch (...) {
      stopped_ = true;
      throw;
    }
  }

  // See [Note: Pruning]. `k` does not fit: returns the last candidate to skip, which is the last
  // but one of those with larger microbatches.
  [[nodiscard]] size_t last_of_pruned(size_t k) const {
    const std::vector<Candidate>& all = out_.candidates;
    size_t last = k;
    while (last + 1 < all.size() && all[last + 1].batch > all[last].batch) {
      ++last;
    }
    return last == k ? k : last - 1;
  }

  const Scenario& scenario_;
  const Target& target_;
  Predictions& predictions_;
  PredictedList out_;          // each thread writes what is of its own shares
  std::vector<Range> shares_;  // ranges of out_.candidates
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<Range> left_;  // remaining ranges of shares_, by thread; guarded by mutex_
};

}  // namespace

PredictedList predict_all(const Scenario& scenario,
                          const Target& target,
                          const SearchOptions& options,
                          std::vector<Candidate> candidates,
                          Predictions& predictions) {
  return FullSearch(scenario, target, std::move(candidates), predictions).run(threads_of(options));
}

}  // namespace shardlens::sim
