#include "core/base/error.h"
#include "profiler/record/device/device_tracer.h"

namespace shardlens::record {

std::unique_ptr<DeviceTracer> start_cupti(SpoolRecorder& /*recorder*/,
                                          const CuptiOptions& /*options*/) {
  throw RuntimeFault("no device records: this build has no CUPTI (see cmake/FindCupti.cmake)");
}

}  // namespace shardlens::record
