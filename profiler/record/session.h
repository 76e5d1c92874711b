#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "profiler/record/device_tracer.h"
#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

struct SessionOptions {
  SpoolOptions spool;     // directory, rank, groups, which steps; the directory is made
  bool device = false;    // record the GPU too
  bool operators = true;  // ATen operators and autograd nodes of the thread that makes it
  CuptiOptions cupti = {};
  std::function<void(const std::string&)> warn = {};  // empty: a line on stderr
};

// Records a training loop of any LibTorch program, for as long as it lives:
//
//   record::Session session({.spool = {.directory = "out"}});
//   options.recorder = &session.recorder();       // of fully_shard and World, where those are used
//   for (int64_t k = 0; k < 10; ++k) {
//     const auto step = session.step();
//     …                                           // forward, backward, optimizer
//   }                                             // out/rank0.pt.trace.json.gz
//
// Ranges of units go to NVTX as well. A device that cannot be recorded is said once, and the
// capture goes on without it.
//
// Ownership   outlives whatever was given recorder(), or finish() is called once that is idle.
// Threads     make it, call step() and destroy it on the thread that trains.
// Errors      the constructor throws RuntimeFault (the directory), UsageError (a second session).
//             finish() throws RuntimeFault if the trace cannot be written; the destructor warns. If
//             an exception ends it, the spool stays as after a fault: analyze and convert read it.
class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] Recorder& recorder();
  [[nodiscard]] SpoolRecorder& spool();

  // A step for a scope.
  class Step {
   public:
    ~Step() { recorder_.step_end(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    friend class Session;
    Step(Recorder& recorder, int64_t number) : recorder_(recorder) { recorder_.step_begin(number); }
    Recorder& recorder_;
  };
  [[nodiscard]] Step step() { return {recorder(), next_step_++}; }

  // Ends the recording and writes DIR/rank<r>.pt.trace.json.gz; returns its path. Once.
  std::filesystem::path finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  int64_t next_step_ = 0;
  int exceptions_;
};

}  // namespace shardlens::record
