#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "profiler/record/device/device_tracer.h"
#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

struct SessionOptions {   // what a session records, and where to
  SpoolOptions spool;     // directory (created if missing), rank, groups, steps to record
  bool device = false;    // record the GPU too
  bool operators = true;  // ATen operators and autograd nodes of the creating thread
  CuptiOptions cupti = {};
  std::function<void(const std::string&)> warn = {};  // empty: a line on stderr
};

// Records the training loop of any LibTorch program, from construction to destruction:
//
//   record::Session session({.spool = {.directory = "out"}});
//   options.recorder = &session.recorder();       // for fully_shard and World, if used
//   for (int64_t k = 0; k < 10; ++k) {
//     const auto step = session.step();
//     …                                           // forward, backward, optimizer
//   }                                             // out/rank0.pt.trace.json.gz
//
// Ranges of units are also NVTX ranges. If a device cannot be recorded, this is reported once and
// the capture continues without it.
//
// Ownership   must outlive all users of recorder(), or finish() must be called once they are idle.
// Threads     construct, call step() and destroy on the training thread.
// Errors      the constructor throws RuntimeFault (the directory), UsageError (a second session).
//             finish() throws RuntimeFault if the trace cannot be written; the destructor warns. If
//             an exception ends the session, the spool is kept as after a fault: analyze and
//             convert can read it.
class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] Recorder& recorder();
  [[nodiscard]] SpoolRecorder& spool();

  // A step that lasts for a scope.
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

  // Ends the recording and writes DIR/rank<r>.pt.trace.json.gz; returns its path. Call at most
  // once.
  std::filesystem::path finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  int64_t next_step_ = 0;
  int exceptions_;
};

}  // namespace shardlens::record
