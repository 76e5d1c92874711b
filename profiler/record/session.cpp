#include "profiler/record/session.h"

#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/output_folder.h"
#include "profiler/record/device/device_recorder.h"
#include "profiler/record/host/finish.h"
#include "profiler/record/operators/operator_observer.h"
#include "profiler/record/ranges/nvtx_recorder.h"

namespace shardlens::record {
namespace {

SessionOptions prepared(SessionOptions options) {
  (void)OutputFolder::make(options.spool.directory);
  if (!options.warn) {
    options.warn = [rank = options.spool.rank](const std::string& message) {
      write_stderr("[rank {}] {}\n", rank, message);
    };
  }
  return options;
}

}  // namespace

// Members are in order of dependency. NVTX comes after CUPTI, because its first call looks for
// CUPTI.
struct Session::Parts {
  explicit Parts(SessionOptions given)
      : options(prepared(std::move(given))),
        spool(options.spool),
        tracer(options.device ? trace_device() : nullptr),
        device(spool, tracer.get()),
        nvtx(&device, [this] { return spool.recording(); }) {
    if (options.operators) {
      observer.emplace(spool);
    }
    spool.set_warning_listener(options.warn);
  }

  std::unique_ptr<DeviceTracer> trace_device() {
    try {
      CuptiOptions cupti = options.cupti;
      if (!cupti.synchronize) {
        cupti.synchronize = wait_for_devices;
      }
      return start_cupti(spool, cupti);
    } catch (const RuntimeFault& fault) {
      spool.note(fault.what());
      options.warn(fmt::format("{}; the capture continues without them", fault.what()));
      return nullptr;
    }
  }

  const SessionOptions options;
  SpoolRecorder spool;
  std::unique_ptr<DeviceTracer> tracer;
  DeviceRecorder device;
  NvtxRecorder nvtx;
  std::optional<OperatorObserver> observer;
  bool finished = false;
};

Session::Session(SessionOptions options)
    : parts_(std::make_unique<Parts>(std::move(options))), exceptions_(std::uncaught_exceptions()) {
  if (const std::string& error = parts_->spool.page_error(); !error.empty()) {
    parts_->options.warn(error);
  }
}

Session::~Session() {
  if (parts_->finished) {
    return;
  }
  try {
    if (std::uncaught_exceptions() > exceptions_) {
      parts_->observer.reset();
      if (parts_->tracer != nullptr) {
        static_cast<void>(parts_->tracer->finish(/*wait=*/false));
      }
      parts_->spool.flush();
    } else {
      static_cast<void>(finish());
    }
  } catch (const std::exception& error) {
    parts_->options.warn(error.what());
  }
}

Recorder& Session::recorder() {
  return parts_->nvtx;
}

SpoolRecorder& Session::spool() {
  return parts_->spool;
}

std::filesystem::path Session::finish() {
  Parts& parts = *parts_;
  if (std::exchange(parts.finished, true)) {
    throw UsageError("Session::finish: already called");
  }
  parts.observer.reset();
  if (parts.tracer != nullptr) {
    const int64_t seen = parts.tracer->finish(/*wait=*/true);
    if (seen != parts.nvtx.ended()) {
      parts.spool.note(fmt::format("{} NVTX ranges of units have ended, but CUPTI saw {}",
                                   parts.nvtx.ended(), seen));
    }
  }
  std::filesystem::path trace = finish_trace(parts.spool);
  if (const std::string losses = parts.spool.losses(); !losses.empty()) {
    parts.options.warn(losses + "; analyze reports this as well");
  }
  return trace;
}

}  // namespace shardlens::record
