#include "sim/search/per_block.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <queue>

#include "core/base/error.h"
#include "sim/search/block_plan.h"
#include "sim/search/evaluator.h"
#include "sim/search/meshes.h"
#include "sim/search/prefetch_moves.h"
#include "sim/search/step_bound.h"

namespace shardlens::sim {
namespace {

constexpr double kNear = 0.0001;  // a bound that is this close to the best step is not followed
constexpr size_t kImproved = 10;  // number of frames whose best choices are improved
constexpr size_t kFew = 6;        // up to this many blocks, more is tried
constexpr size_t kShare = 8;      // a part of the simulations: for bounds, for prefetch lists

constexpr Nanoseconds kUnbounded = std::numeric_limits<Nanoseconds>::max();

enum class Spread : uint8_t { kFirst, kEven };
enum class BlockChanges : uint8_t { kSingle, kPairs };

struct Solution {
  Candidate candidate;
  Outcome outcome;
  [[nodiscard]] Nanoseconds duration() const { return outcome.figures.duration(); }
};

// A setting of a block that is changed.
struct Flip {
  bool BlockChoice::*what = nullptr;
  size_t block = 0;
};

// A frame that waits for its search.
struct Waiting {
  enum class Stage : uint8_t { kWork, kStep, kProbed };
  Nanoseconds expected = 0;  // time of its best step; the next frame is the one with the least
  Nanoseconds bound = 0;
  const Candidate* frame = nullptr;
  Stage stage = Stage::kWork;  // kStep: the bound contains StepBounds::of_step()
  friend bool operator>(const Waiting& a, const Waiting& b) {
    return std::pair(a.expected, a.frame) > std::pair(b.expected, b.frame);
  }
};

// Frames on the plan's axes that divide the work of a step.
std::vector<Candidate> frames_of(const Scenario& scenario, const SearchOptions& options) {
  const plan::MeshSizes& mesh = scenario.plan.mesh;
  std::vector<Candidate> out =
      plan_frames(scenario.model->tree(), data_parallel_ranks(scenario.world_size, mesh),
                  scenario.step.samples(), options.precisions);
  for (Candidate& each : out) {
    each.context = mesh.context;
    each.tensor = mesh.tensor;
    each.expert = mesh.expert;
  }
  return out;
}

class PerBlockSearch {
 public:
  PerBlockSearch(const Scenario& scenario,
                 const Target& target,
                 const SearchOptions& options,
                 size_t most)
      : scenario_(scenario),
        options_(options),
        most_(most),
        blocks_(scenario.model->tree().blocks.size()),
        frames_(frames_of(scenario, options)),
        evaluator_(scenario, target),
        bounds_(evaluator_) {}

  // The best plan of a search with equal blocks, if the space has it.
  void start_from(const Candidate& candidate) {
    for (const Candidate& frame : frames_) {
      if (frame.batch == candidate.batch && frame.shard == candidate.shard &&
          frame.forward_prefetch == candidate.forward_prefetch &&
          frame.precision == candidate.precision && !frame.outer_units && !frame.saves.any()) {
        Candidate start = frame;
        start.blocks_per_unit = candidate.blocks_per_unit == 0 ? static_cast<int64_t>(blocks_)
                                                               : candidate.blocks_per_unit;
        start.blocks = uniform_choices(start, blocks_, !candidate.reshard);
        for (BlockChoice& each : start.blocks) {
          each.checkpointed = candidate.checkpoint;
        }
        start.blocks_per_unit = frame.blocks_per_unit;
        if (!candidate.backward_prefetch) {
          apply(no_backward_prefetch(), start);
        }
        attempt(std::move(start));
        if (best_) {
          keep(std::move(*best_));
        }
        return;
      }
    }
  }

  std::optional<PerBlockPlan> take() {
    bound_frames();
    while (!waiting_.empty() && !stops()) {
      follow();
    }
    if (found_.empty()) {
      return std::nullopt;
    }
    const auto least = static_cast<double>(least_bound());
    improve();
    const Solution& best = found_.front();
    PerBlockPlan out{.candidate = best.candidate,
                     .plan = plan_of(best.candidate, scenario_.plan, scenario_.model->tree(),
                                     scenario_.world_size),
                     .outcome = best.outcome};
    out.gap = std::max(0.0, static_cast<double>(best.duration()) / least - 1);
    out.evaluated = evaluator_.evaluated();
    out.cancelled = cancelled();
    return out;
  }

 private:
  [[nodiscard]] bool cancelled() const {
    return options_.cancelled != nullptr && *options_.cancelled;
  }
  // Half of the simulations are left to improve(). Until something fits, the search goes on.
  [[nodiscard]] bool stops() const {
    return cancelled() || (!found_.empty() && 2 * evaluator_.evaluated() >= most_);
  }
  [[nodiscard]] bool is_done(Nanoseconds bound) const {
    return !found_.empty() && static_cast<double>(found_.front().duration()) <=
                                  (1 + kNear) * static_cast<double>(bound);
  }

  void bound_frames() {
    std::optional<InputError> refusal;
    for (const Candidate& frame : frames_) {
      try {
        if (const std::optional<Nanoseconds> bound = bounds_.of_work(frame)) {
          waiting_.push({*bound, *bound, &frame});
          if (frame.forward_prefetch == 0) {  // lists can replace any depth
            bounded_.emplace_back(*bound, &frame);
          }
        }
      } catch (const InputError& error) {
        refusal = refusal ? refusal : error;
      }
      if (cancelled()) {
        return;
      }
    }
    if (waiting_.empty() && refusal) {
      throw InputError(*refusal);
    }
  }

  // A lower bound of all plans of the frames with any prefetch lists. Most frames need no more than
  // their first bound.
  Nanoseconds least_bound() {
    std::sort(bounded_.begin(), bounded_.end());
    const size_t last = evaluator_.evaluated() + most_ / kShare;
    Nanoseconds out = kUnbounded;
    for (const auto& [work, frame] : bounded_) {
      if (work >= out) {
        break;
      }
      const bool refines = evaluator_.evaluated() < last && !cancelled();
      out = std::min(out, refines ? std::max(work, bounds_.of_lists(*frame)) : work);
    }
    return out;
  }

  // The frame with the least expectation: refines it, or searches the frame.
  void follow() {
    Waiting next = waiting_.top();
    waiting_.pop();
    const Candidate& frame = *next.frame;
    if (is_done(next.bound)) {
      return;
    }
    best_.reset();
    if (next.stage == Waiting::Stage::kWork) {
      next.stage = Waiting::Stage::kStep;
      next.bound = next.expected = std::max(next.bound, bounds_.of_step(frame));
      waiting_.push(next);
      return;
    }
    if (next.stage == Waiting::Stage::kStep) {
      next.stage = Waiting::Stage::kProbed;
      if (const std::optional<Nanoseconds> expected = probe(frame)) {
        next.expected = std::max(next.bound, *expected);
        waiting_.push(next);
      } else if (frame.forward_prefetch == 0) {
        std::erase_if(bounded_, [&frame](const auto& each) { return each.second == &frame; });
      }
    } else {
      for (const Spread spread : {Spread::kFirst, Spread::kEven}) {
        walk(frame, spread);
      }
      while (blocks_ <= kFew && best_ && !cancelled() && improve_once(BlockChanges::kSingle)) {
      }
    }
    if (best_) {
      keep(std::move(*best_));
    }
  }

  // The step that can be expected of the frame: that of the plan that needs least memory, without
  // the recomputation for which memory is left. nullopt: nothing fits. (The last block's
  // activations are needed at once, so its checkpoint may save nothing. Without prefetch one unit
  // less is gathered at a time.)
  std::optional<Nanoseconds> probe(const Candidate& frame) {
    if (bounds_.memory_of_step(frame) <= evaluator_.target().memory &&
        attempt(with_blocks(frame, uniform_choices(frame, blocks_, true)))) {
      return best_->duration();
    }
    if (!attempt(choices_of(frame, 0, blocks_, Spread::kFirst)) &&
        !attempt(choices_of(frame, 0, blocks_ - 1, Spread::kFirst)) &&
        !attempt_without_prefetch(frame, blocks_) &&
        !attempt_without_prefetch(frame, blocks_ - 1)) {
      return std::nullopt;
    }
    const Bytes left = evaluator_.target().memory - best_->outcome.peak_reserved;
    return best_->duration() - bounds_.spared(frame, left);
  }

  [[nodiscard]] PrefetchMove no_backward_prefetch() const {
    return {0, blocks_ + 1, &PrefetchCounts::backward, 0};
  }
  bool attempt_without_prefetch(const Candidate& frame, size_t checkpointed) {
    if (frame.forward_prefetch > 0) {
      return false;  // that is the plan of another frame
    }
    Candidate none = choices_of(frame, 0, checkpointed, Spread::kFirst);
    return apply(no_backward_prefetch(), none) && attempt(std::move(none));
  }

  // Keeps only the fastest solutions.
  void keep(Solution solution) {
    found_.push_back(std::move(solution));
    std::stable_sort(found_.begin(), found_.end(), [](const Solution& a, const Solution& b) {
      return a.duration() < b.duration();
    });
    found_.resize(std::min(found_.size(), kImproved));
  }

  // The frame with its last `kept` units kept, and this many blocks checkpointed.
  [[nodiscard]] Candidate choices_of(const Candidate& frame,
                                     size_t kept,
                                     size_t checkpointed,
                                     Spread spread) const {
    Candidate out = with_blocks(frame, uniform_choices(frame, blocks_, false));
    const size_t units = units_of(frame), size = unit_of(frame);
    for (size_t i = 0; i < blocks_; ++i) {
      BlockChoice& block = out.blocks[i];
      block.kept = block.starts && i / size + kept >= units;
      block.checkpointed = spread == Spread::kFirst
                               ? i < checkpointed
                               : (i + 1) * checkpointed / blocks_ > i * checkpointed / blocks_;
    }
    return out;
  }
  [[nodiscard]] static size_t unit_of(const Candidate& frame) {
    return static_cast<size_t>(frame.blocks_per_unit);
  }
  [[nodiscard]] size_t units_of(const Candidate& frame) const {
    return (blocks_ + unit_of(frame) - 1) / unit_of(frame);
  }

  // Whether the candidate fits; if it is the fastest of the present frame so far, keeps it.
  // Candidates with work that was not measured on the machine are left out.
  bool attempt(Candidate candidate) {
    Outcome now;
    try {
      now = evaluator_.evaluate(candidate);
    } catch (const InputError&) {
      return false;
    }
    if (now.fits && (!best_ || now.figures.duration() < best_->duration())) {
      best_ = Solution{std::move(candidate), now};
    }
    return now.fits;
  }

  // The least number from `low` to `high` that fits; `high` + 1: none. All larger ones fit, too.
  static size_t first_true(size_t low, size_t high, const std::function<bool(size_t)>& fits) {
    ++high;
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (fits(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // See [Note: Search per block]. Steps along the border grow, as its corners are local changes
  // away.
  void walk(const Candidate& frame, Spread spread) {
    const size_t units = gathers(frame) ? units_of(frame) : 0;
    for (size_t i = 0; blocks_ <= kFew && i < (blocks_ + 1) * (units + 1); ++i) {
      Candidate now = choices_of(frame, i % (units + 1), i / (units + 1), spread);
      attempt(now);
      // Without prefetch in backward, which needs less memory.
      if (frame.forward_prefetch == 0 && apply(no_backward_prefetch(), now)) {
        attempt(std::move(now));
      }
    }
    if (blocks_ <= kFew) {
      return;
    }
    size_t kept = 0;
    const size_t first = first_true(0, blocks_ - 1, [&](size_t checkpointed) {
      return attempt(choices_of(frame, 0, checkpointed, spread));
    });
    for (size_t more = 0, checkpointed = first; checkpointed <= blocks_ && !cancelled();
         more = 2 * more + 1, checkpointed = first + more) {
      if (best_ && bounds_.of_compute(frame, checkpointed) >= best_->duration()) {
        return;
      }
      // The largest number of kept units that fits.
      kept = units - first_true(0, units - kept, [&](size_t freed) {
               return attempt(choices_of(frame, units - freed, checkpointed, spread));
             });
      if (kept == units) {
        return;  // more checkpoints only take longer
      }
    }
  }

  // With few blocks, all changes are neighbours. With many, a part of the simulations is left to
  // prefetch lists.
  void improve() {
    const bool few = blocks_ <= kFew;
    improve_all(few ? most_ : most_ - std::min(most_, most_ / kShare),
                [this] { return improve_once(BlockChanges::kPairs); });
    if (!few) {
      improve_all(most_, [this] { return improve_prefetch(); });
      improve_all(most_, [this] { return improve_once(BlockChanges::kPairs); });
    }
  }

  void improve_all(size_t most, const std::function<bool()>& once) {
    for (Solution& each : found_) {
      best_ = each;
      while (evaluator_.evaluated() < most && !cancelled() && once()) {
      }
      each = *best_;
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Solution& a, const Solution& b) {
      return a.duration() < b.duration();
    });
  }

  // Tries other prefetch counts of the best plan, and goes on from each that is faster.
  bool improve_prefetch() {
    const Nanoseconds before = best_->duration();
    for (const PrefetchMove& move : prefetch_moves(best_->candidate.blocks)) {
      if (evaluator_.evaluated() >= most_ || cancelled()) {
        break;
      }
      Candidate now = best_->candidate;
      if (apply(move, now)) {
        attempt(std::move(now));
      }
    }
    return best_->duration() < before;
  }

  // Tries local changes of the best plan until one is faster.
  bool improve_once(BlockChanges changes) {
    const Solution before = *best_;
    const Candidate& own = before.candidate;
    for (Candidate& each : neighbours(own, changes)) {
      if (evaluator_.evaluated() >= most_ || cancelled()) {
        return false;
      }
      if (each.blocks != own.blocks || differs_in_one(each, own) ||
          each.root_prefetch != own.root_prefetch) {
        attempt(std::move(each));
      }
      if (best_->duration() < before.duration()) {
        return true;
      }
    }
    return false;
  }

  // Plans with another setting of the whole plan, with another setting of a block, or in which
  // neighbours trade places. With few blocks also plans with two such changes.
  [[nodiscard]] std::vector<Candidate> neighbours(const Candidate& of, BlockChanges changes) const {
    std::vector<Candidate> frames;
    std::copy_if(frames_.begin(), frames_.end(), std::back_inserter(frames),
                 [&of](const Candidate& frame) { return differs_in_one(frame, of); });
    for (Candidate& frame : frames) {
      frame.root_prefetch = of.root_prefetch;
    }
    const std::vector<Flip> flips = all_flips();
    std::vector<BlockChoices> moves, pairs;
    for (const Flip& flip : flips) {
      moves.push_back(flipped(of.blocks, {flip}));
    }
    for (size_t a = 0; changes == BlockChanges::kPairs && a < flips.size(); ++a) {
      for (size_t b = a + 1; b < flips.size(); ++b) {
        const bool swap =
            flips[a].what == flips[b].what &&
            is_set(of.blocks, flips[a]) != is_set(of.blocks, flips[b]) &&
            std::max(flips[a].block, flips[b].block) - std::min(flips[a].block, flips[b].block) <=
                1;
        if (swap || blocks_ <= kFew) {
          (swap ? moves : pairs).push_back(flipped(of.blocks, {flips[a], flips[b]}));
        }
      }
    }
    std::vector<Candidate> out;
    const auto add = [&out](const Candidate& frame, const std::vector<BlockChoices>& all) {
      for (const BlockChoices& choices : all) {
        out.push_back(with_blocks(frame, choices));
      }
    };
    for (const Candidate& frame : frames) {
      add(frame, {of.blocks});
    }
    add(of, moves);
    add(of, pairs);
    for (const Candidate& frame : frames) {
      add(frame,
          changes == BlockChanges::kPairs && blocks_ <= kFew ? moves : std::vector<BlockChoices>{});
    }
    add_prefetch(of, changes == BlockChanges::kPairs ? flips : std::vector<Flip>{}, out);
    return out;
  }

  // With few blocks: other prefetch counts, also with one flip.
  void add_prefetch(const Candidate& of,
                    const std::vector<Flip>& flips,
                    std::vector<Candidate>& out) const {
    const size_t begin = out.size();
    for (const PrefetchMove& move :
         blocks_ <= kFew ? prefetch_moves(of.blocks) : std::vector<PrefetchMove>{}) {
      Candidate now = of;
      if (apply(move, now)) {
        out.push_back(std::move(now));
      }
    }
    const size_t end = out.size();
    for (size_t i = begin; i < end; ++i) {
      for (const Flip& flip : flips) {
        out.push_back(with_blocks(out[i], flipped(out[i].blocks, {flip})));
      }
    }
  }

  [[nodiscard]] static bool is_set(const BlockChoices& of, const Flip& flip) {
    return of[flip.block].*flip.what;
  }

  // The last blocks first, where changes usually help most.
  [[nodiscard]] std::vector<Flip> all_flips() const {
    std::vector<Flip> out;
    for (size_t i = blocks_; i-- > 0;) {
      out.push_back({&BlockChoice::checkpointed, i});
      out.push_back({&BlockChoice::kept, i});
    }
    for (size_t i = 1; i < blocks_; ++i) {
      out.push_back({&BlockChoice::starts, i});
    }
    return out;
  }

  // Both parts of a unit that is divided are kept as it was, unless a flip says otherwise.
  [[nodiscard]] static BlockChoices flipped(const BlockChoices& of,
                                            std::initializer_list<Flip> flips) {
    BlockChoices out = of;
    for (size_t i = 1; i < out.size(); ++i) {
      out[i].kept = out[i].starts ? out[i].kept : out[i - 1].kept;
    }
    for (const Flip& flip : flips) {
      out[flip.block].*flip.what = !(out[flip.block].*flip.what);
    }
    for (BlockChoice& each : out) {
      each.kept = each.kept && each.starts;
      each.prefetch = each.starts ? each.prefetch : PrefetchCounts{};
    }
    return out;
  }

  // Whether the frames have the same microbatches and mesh and differ in one of the other settings.
  [[nodiscard]] static bool differs_in_one(const Candidate& a, const Candidate& b) {
    const int count = (a.forward_prefetch != b.forward_prefetch ? 1 : 0) +
                      (a.outer_units != b.outer_units ? 1 : 0) + (a.saves != b.saves ? 1 : 0);
    return a.batch == b.batch && a.shard == b.shard && a.blocks_per_unit == b.blocks_per_unit &&
           a.precision == b.precision && count == 1;
  }

  const Scenario& scenario_;
  const SearchOptions& options_;
  size_t most_, blocks_;
  std::vector<Candidate> frames_;
  Evaluator evaluator_;
  StepBounds bounds_;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  // First bounds of the frames without a depth, in which something may fit.
  std::vector<std::pair<Nanoseconds, const Candidate*>> bounded_;
  std::optional<Solution> best_;  // of the present frame
  std::vector<Solution> found_;   // of the best frames, fastest first
};

}  // namespace

std::optional<PerBlockPlan> search_per_block(const Scenario& scenario,
                                             const SearchOptions& options,
                                             const Candidate* equal_blocks,
                                             std::optional<size_t> most) {
  if (scenario.plan.dialect == plan::Dialect::kFsdp1) {
    throw InputError(fmt::format("{}#/dialect", scenario.plan.source),
                     "a search per block needs fsdp2; fsdp1 has no settings by unit");
  }
  const size_t blocks = scenario.model->tree().blocks.size();
  if (blocks == 0) {
    return std::nullopt;
  }
  const Target target = limited(scenario.machine->target(), options.memory_limit);
  PerBlockSearch search(scenario, target, options, most.value_or(most_steps(blocks)));
  if (equal_blocks != nullptr) {
    search.start_from(*equal_blocks);
  }
  return search.take();
}

}  // namespace shardlens::sim
