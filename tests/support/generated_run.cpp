#include "tests/support/generated_run.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "core/base/units.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::test {
namespace {

class RunGenerator {
 public:
  explicit RunGenerator(const GeneratedRun& what) : what_(what), random_(what.seed) {}

  trace::Run run() {
    std::mt19937_64 session(what_.session * 7919 + 17);
    const double level = (1 + what_.run_noise * normal_(random_)) *
                         (1 + what_.session_noise * std::normal_distribution<double>()(session));
    collective_level_ = 1 + 3 * what_.run_noise * normal_(random_);
    for (int r = 0; r < what_.ranks; ++r) {
      begin_rank(r);
    }
    double carried = normal_(random_);
    for (int step = 0; step < what_.steps; ++step) {
      carried = 0.5 * carried + std::sqrt(0.75) * normal_(random_);
      pace_ = level * (1 + what_.step_noise * carried);
      pace_ *= uniform_(random_) < what_.hiccups ? 1.5 : 1;
      pace_ *= step == what_.slow_step ? 10 : 1;
      pace_ *= step < what_.warmup ? 4.0 - step : 1;
      make_step(step);
    }
    std::vector<trace::Trace> traces;
    for (Rank& rank : ranks_) {
      traces.push_back(std::move(rank.trace));
    }
    return trace::Run::of(std::move(traces));
  }

 private:
  static constexpr Nanoseconds kLaunch = 4'000;

  struct Rank {
    trace::Trace trace;
    uint32_t host = 0, compute = 0, gather = 0, reduce = 0;
    Nanoseconds now = 1'000'000;  // of the host
    Nanoseconds compute_end = 0, gather_end = 0, reduce_end = 0;
    uint32_t correlation = 0;
  };

  void begin_rank(int r) {
    Rank& rank = ranks_.emplace_back();
    rank.trace.metadata.rank = r;
    rank.trace.metadata.world_size = what_.ranks;
    rank.trace.metadata.backend = "nccl";
    rank.host = rank.trace.track(1, 1);
    rank.compute = rank.trace.track(0, 7);
    rank.gather = rank.trace.track(0, 20);
    rank.reduce = what_.reductions_beside_gathers ? rank.gather : rank.trace.track(0, 24);
  }

  double noisy(double ns, double share) {
    return std::max(1000.0, ns * pace_ * (1 + share * normal_(random_)));
  }

  // Runs `body` on the host, inside a range.
  template <typename Body>
  void range(Rank& rank, const std::string& name, const Body& body) {
    const Nanoseconds start = rank.now;
    rank.now += 1000;
    body();
    rank.now += 1000;
    rank.trace.add_complete(trace::Category::kUserAnnotation, name, rank.host, start, rank.now);
  }

  Nanoseconds launch(Rank& rank) {
    const uint32_t event = rank.trace.add_complete(
        trace::Category::kCudaRuntime, "cudaLaunchKernel", rank.host, rank.now, rank.now + kLaunch);
    rank.trace.events[event].correlation = ++rank.correlation;
    rank.now += kLaunch;
    return rank.now;
  }

  void kernel(Rank& rank, const std::string& name, double ns, Nanoseconds after) {
    const Nanoseconds start = std::max({launch(rank), rank.compute_end, after});
    rank.compute_end = start + static_cast<Nanoseconds>(ns);
    const uint32_t event = rank.trace.add_complete(trace::Category::kKernel, name, rank.compute,
                                                   start, rank.compute_end);
    rank.trace.events[event].correlation = rank.correlation;
  }

  // A collective on all ranks: each starts as soon as it can, all end at once. `ready`: by rank.
  void collective(bool gathers, double ns, const std::vector<Nanoseconds>& ready, Bytes bytes) {
    std::vector<Nanoseconds> starts;
    Nanoseconds last = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      const bool one_stream = rank.reduce == rank.gather;
      const Nanoseconds free = gathers
                                   ? std::max(rank.gather_end, one_stream ? rank.reduce_end : 0)
                                   : std::max(rank.reduce_end, one_stream ? rank.gather_end : 0);
      starts.push_back(std::max({launched_[r], free, ready[r]}));
      last = std::max(last, starts.back());
    }
    const Nanoseconds end = last + static_cast<Nanoseconds>(std::max(1000.0, ns));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      trace::CollectiveArgs args;
      args.collective =
          rank.trace.strings.intern(gathers ? "_allgather_base" : "_reduce_scatter_base");
      args.dtype = rank.trace.strings.intern("Float");
      args.group = rank.trace.strings.intern("0");
      args.group_size = what_.ranks;
      args.in_nelems = gathers ? bytes / 4 / what_.ranks : bytes / 4;
      args.out_nelems = gathers ? bytes / 4 : bytes / 4 / what_.ranks;
      const uint32_t event = rank.trace.add_collective(
          gathers ? "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                  : "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
          gathers ? rank.gather : rank.reduce, starts[r], end, args);
      rank.trace.events[event].category = trace::Category::kKernel;
      rank.trace.events[event].correlation = correlations_[r];
      (gathers ? rank.gather_end : rank.reduce_end) = end;
    }
  }

  template <typename Body>
  void each(const Body& body) {
    for (Rank& rank : ranks_) {
      body(rank);
    }
  }

  [[nodiscard]] std::string name(int unit) const {
    return unit < 0 ? "" : fmt::format(fmt::runtime(what_.layer_name), unit);
  }
  [[nodiscard]] std::string named(const char* call, int unit) const {
    return unit < 0 ? fmt::format("FSDP::{}", call)
                    : fmt::format("FSDP::{} ({})", call, name(unit));
  }
  [[nodiscard]] Bytes bytes(int unit) const {
    return unit < 0 ? 1024 : (what_.layer_bytes + more_bytes_) / 64 * 64;
  }

  double collective_time(double ns) {
    return ns * pace_ * collective_level_ * (1 + what_.collective_noise * normal_(random_));
  }

  void gather(int unit, double ns, const std::vector<Nanoseconds>& ready) {
    launched_.clear();
    correlations_.clear();
    each([&](Rank& rank) {
      range(rank, named("all_gather", unit), [&] { launched_.push_back(launch(rank)); });
      correlations_.push_back(rank.correlation);
    });
    collective(true, collective_time(ns), ready, bytes(unit));
  }

  void reduce(int unit, double ns) {
    launched_.clear();
    correlations_.clear();
    each([&](Rank& rank) {
      range(rank, named("post_backward_reduce", unit), [&] { launched_.push_back(launch(rank)); });
      correlations_.push_back(rank.correlation);
    });
    collective(false, ns, ends(), bytes(unit));
  }

  [[nodiscard]] std::vector<Nanoseconds> ends() const {  // of compute so far
    std::vector<Nanoseconds> out;
    for (const Rank& rank : ranks_) {
      out.push_back(rank.compute_end);
    }
    return out;
  }
  [[nodiscard]] std::vector<Nanoseconds> gathered() const {
    std::vector<Nanoseconds> out;
    for (const Rank& rank : ranks_) {
      out.push_back(rank.gather_end);
    }
    return out;
  }
  [[nodiscard]] std::vector<Nanoseconds> no_wait() const {
    return std::vector<Nanoseconds>(ranks_.size(), 0);
  }

  void compute(double ns, const char* kernel_name, const std::vector<Nanoseconds>& after) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      kernel(ranks_[r], kernel_name, noisy(ns, what_.operator_noise), after[r]);
    }
  }

  // A range that the host opens on all ranks, around `body`.
  template <typename Body>
  void around(const std::string& range_name, const Body& body) {
    std::vector<Nanoseconds> starts;
    each([&](Rank& rank) {
      starts.push_back(rank.now);
      rank.now += 1000;
    });
    body();
    size_t r = 0;
    each([&](Rank& rank) {
      rank.now += 1000;
      rank.trace.add_complete(trace::Category::kUserAnnotation, range_name, rank.host, starts[r++],
                              rank.now);
    });
  }

  void make_step(int step) {
    if (what_.varying_bytes > 0) {
      more_bytes_ = static_cast<Bytes>(std::uniform_real_distribution<double>(
          0, what_.varying_bytes * static_cast<double>(what_.layer_bytes))(sizes_));
    }
    if (what_.overhead > 0) {
      each([&](Rank& rank) {
        rank.trace.add_complete(trace::Category::kOverhead, "Activity Buffer Request",
                                rank.trace.track(-1, 0), rank.now + 2'000'000,
                                rank.now + 2'000'000 + what_.overhead);
      });
    }
    if (step == 0 && what_.memory_peak > 0) {
      each([&](Rank& rank) {
        allocate(rank, what_.memory_kept, what_.memory_kept);
        rank.now += 1000;
      });
    }
    around(fmt::format("ProfilerStep#{}", step), [&] {
      forward();
      if (what_.memory_peak > 0) {
        const Bytes more = what_.memory_peak - what_.memory_kept;
        each([&](Rank& rank) {
          allocate(rank, more, what_.memory_peak);
          allocate(rank, -more, what_.memory_kept);
        });
      }
      backward();
      around("Optimizer.step#AdamW.step", [&] {
        std::vector<Nanoseconds> reduced;
        each([&](Rank& rank) { reduced.push_back(rank.reduce_end); });
        compute(what_.optimizer, "multi_tensor_apply_kernel", reduced);
      });
      each([](Rank& rank) { rank.now = std::max(rank.now, rank.compute_end); });  // loss.item()
    });
  }

  static void allocate(Rank& rank, Bytes bytes, Bytes total) {
    const uint32_t event = rank.trace.add_complete(trace::Category::kCpuOp, "[memory]",
                                                   rank.trace.track(-1, 0), rank.now, rank.now);
    rank.trace.events[event].phase = trace::EventPhase::kInstant;
    rank.trace.events[event].detail_kind = trace::ArgsKind::kMemory;
    rank.trace.events[event].detail = static_cast<uint32_t>(rank.trace.memory_events.size());
    rank.trace.memory_events.push_back({.bytes = bytes,
                                        .total_allocated = total,
                                        .total_reserved = total,
                                        .device_type = 1,
                                        .device = 0});
  }

  void forward() {
    around("FSDP::root_pre_forward", [] {});
    for (int unit = -1; unit < what_.layers; ++unit) {
      around(named("pre_forward", unit), [&] {
        gather(unit, unit < 0 ? what_.all_gather / 2 : what_.all_gather, no_wait());
        around(named("all_gather_copy_out", unit), [] {});
      });
      if (unit >= 0) {
        compute(what_.forward + what_.more_compute / what_.layers / pace_, "sgemm_forward",
                gathered());
        around(named("post_forward", unit), [] {});
      }
    }
    around(named("post_forward", -1), [] {});
  }

  void gather_for_backward(int unit, const std::vector<Nanoseconds>& ready) {
    gather(unit, what_.all_gather * what_.hidden_all_gather, ready);
  }
  [[nodiscard]] bool prefetched(int unit) const {
    return std::find(what_.not_prefetched.begin(), what_.not_prefetched.end(), unit) ==
           what_.not_prefetched.end();
  }

  // Prefetches `unit` for its backward, unless the run leaves that out.
  void prefetch(int unit) {
    if (unit >= 0 && prefetched(unit)) {
      around(fmt::format("FSDP::backward_prefetch for {}", name(unit)),
             [&] { gather_for_backward(unit, no_wait()); });
    }
  }

  void finish(int unit) {
    const bool last = unit < 0;
    const double exposed = last ? what_.more_exposed : 0;
    reduce(unit, collective_time(last ? what_.reduce_scatter / 2 : what_.reduce_scatter) + exposed);
  }

  void backward() {
    const int top = what_.layers - 1;
    around(named("pre_backward", -1), [&] { prefetch(top); });
    for (int unit = top; unit >= 0; --unit) {
      std::vector<Nanoseconds> ready;
      around(named("pre_backward", unit), [&] {
        if (!prefetched(unit)) {
          gather_for_backward(unit, ends());
        }
        around(named("all_gather_copy_out", unit), [] {});
        ready = gathered();
        prefetch(unit - 1);
      });
      compute(what_.backward, "sgemm_backward", ready);
      around(named("post_backward_reshard", unit), [] {});
      if (!what_.late_reductions) {
        finish(unit);
      }
    }
    for (int unit = top; what_.late_reductions && unit >= 0; --unit) {
      finish(unit);
    }
    around(named("post_backward_reshard", -1), [] {});
    finish(-1);
  }

  const GeneratedRun& what_;
  std::mt19937_64 sizes_{what_.seed + 1000};  // of its own, so that times do not depend on sizes
  Bytes more_bytes_ = 0;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Rank> ranks_;
  std::vector<Nanoseconds> launched_;
  std::vector<uint32_t> correlations_;
  double pace_ = 1, collective_level_ = 1;
};

}  // namespace

trace::Run GeneratedRun::run() const {
  return RunGenerator(*this).run();
}

}  // namespace shardlens::test
