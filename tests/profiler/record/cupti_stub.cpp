#include "tests/profiler/record/cupti_stub.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace shardlens::record {
namespace {

// Size of the records that tests use; 0: another kind.
size_t size_of_record(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return sizeof(CUpti_ActivityOverhead3);
    case CUPTI_ACTIVITY_KIND_MARKER:
      return sizeof(CUpti_ActivityMarker2);
    default:
      return 0;
  }
}

template <typename Visit>
void for_each_record(uint8_t* data, size_t valid, const Visit& visit) {
  CUpti_Activity* record = nullptr;
  while (::cuptiActivityGetNextRecord(data, valid, &record) == CUPTI_SUCCESS) {
    visit(*record);
  }
}

}  // namespace

CuptiStub& CuptiStub::get() {
  static CuptiStub stub;
  return stub;
}

void CuptiStub::reset() {
  const std::lock_guard lock(mutex_);
  batches_.clear();
  enabled_.clear();
  dropped_ = 0;
  flush_in_reverse = hold = false;
  subscriber.clear();
  on_flush = nullptr;
  flushes = forced = dirty = 0;
}

size_t CuptiStub::fill(Buffer records, bool running) {
  Batch batch;
  size_t max_records = 0;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  {
    const std::lock_guard lock(mutex_);
    request = request_;
  }
  request(&batch.buffer, &batch.capacity, &max_records);
  batch.running = running;
  if (batch.buffer != nullptr) {
    const std::span<const uint8_t> bytes(batch.buffer, batch.capacity);
    dirty += std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; }) ? 0 : 1;
    batch.valid = std::min(records.size(), batch.capacity);
    std::memcpy(batch.buffer, records.data(), batch.valid);
  } else {
    size_t count = 0;
    for_each_record(records.data(), records.size(), [&count](CUpti_Activity& /*r*/) { ++count; });
    const std::lock_guard lock(mutex_);
    dropped_ += count;
  }
  const std::lock_guard lock(mutex_);
  batches_.push_back(batch);
  return batches_.size() - 1;
}

void CuptiStub::deliver(size_t number) {
  Batch batch;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  {
    const std::lock_guard lock(mutex_);
    batches_[number].delivered = true;
    batch = batches_[number];
    complete = complete_;
  }
  complete(nullptr, 0, batch.buffer, batch.capacity, batch.valid);
}

void CuptiStub::deliver_stale(uint8_t* buffer, size_t capacity) {
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  {
    const std::lock_guard lock(mutex_);
    complete = complete_;
  }
  complete(nullptr, 0, buffer, capacity, 0);
}

void CuptiStub::finish_running() {
  const std::lock_guard lock(mutex_);
  for (Batch& batch : batches_) {
    batch.running = false;
  }
}

CuptiStub::Batch CuptiStub::batch(size_t number) {
  const std::lock_guard lock(mutex_);
  return batches_[number];
}

bool CuptiStub::enabled(CUpti_ActivityKind kind) {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(kind) < enabled_.size() && enabled_[static_cast<size_t>(kind)];
}

CUptiResult CuptiStub::subscribe(CUpti_SubscriberParams* params) {
  const std::lock_guard lock(mutex_);
  if (subscriber.empty()) {
    return CUPTI_SUCCESS;
  }
  const size_t length = std::min(subscriber.size(), params->oldSubscriberSize - 1);
  std::memcpy(params->oldSubscriberName, subscriber.data(), length);
  params->oldSubscriberName[length] = '\0';
  return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
}

void CuptiStub::register_callbacks(CUpti_BuffersCallbackRequestFunc request,
                                   CUpti_BuffersCallbackCompleteFunc complete) {
  const std::lock_guard lock(mutex_);
  request_ = request;
  complete_ = complete;
}

void CuptiStub::enable(CUpti_ActivityKind kind, bool on) {
  const std::lock_guard lock(mutex_);
  enabled_.resize(std::max(enabled_.size(), static_cast<size_t>(kind) + 1));
  enabled_[static_cast<size_t>(kind)] = on;
}

void CuptiStub::flush(bool force) {
  ++flushes;
  forced += force ? 1 : 0;
  if (on_flush) {
    on_flush();
  }
  std::vector<size_t> due;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < batches_.size(); ++i) {
      Batch& batch = batches_[i];
      if (batch.delivered || batch.buffer == nullptr || (batch.running && !force)) {
        continue;
      }
      if (batch.running) {
        for_each_record(batch.buffer, batch.valid, [](CUpti_Activity& record) {
          if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            auto& kernel = reinterpret_cast<CUpti_ActivityKernel10&>(record);
            kernel.start = kernel.end = 0;
          }
        });
      }
      due.push_back(i);
    }
  }
  if (hold) {
    return;
  }
  if (flush_in_reverse) {
    std::reverse(due.begin(), due.end());
  }
  for (const size_t batch : due) {
    deliver(batch);
  }
}

size_t CuptiStub::take_dropped() {
  const std::lock_guard lock(mutex_);
  return std::exchange(dropped_, 0);
}

}  // namespace shardlens::record

using shardlens::record::CuptiStub;

extern "C" {

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* /*subscriber*/,
                           CUpti_CallbackFunc /*callback*/,
                           void* /*userdata*/) {
  return CUPTI_ERROR_UNKNOWN;  // the tracer uses the next one
}
CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* subscriber,
                              CUpti_CallbackFunc /*callback*/,
                              void* /*userdata*/,
                              CUpti_SubscriberParams* params) {
  *subscriber = nullptr;
  return CuptiStub::get().subscribe(params);
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle /*subscriber*/) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  CuptiStub::get().register_callbacks(request, complete);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  CuptiStub::get().enable(kind, true);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  CuptiStub::get().enable(kind, false);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId /*id*/, uint8_t /*on*/) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId /*id*/, uint8_t /*on*/) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute,
                                      size_t* size,
                                      void* value) {
  if (attribute == CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER && *size == sizeof(uint8_t)) {
    CuptiStub::get().zeroed = *static_cast<const uint8_t*>(value) != 0;
  }
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableAllSyncRecords(uint8_t /*on*/) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  CuptiStub::get().flush((flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  auto* next = reinterpret_cast<uint8_t*>(*record);
  if (next == nullptr) {
    next = buffer;
  } else {
    next += (shardlens::record::size_of_record(**record) + 7) / 8 * 8;
  }
  if (next >= buffer + valid) {
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  }
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return shardlens::record::size_of_record(**record) == 0 ? CUPTI_ERROR_INVALID_KIND
                                                          : CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext /*context*/,
                                              uint32_t /*stream*/,
                                              size_t* dropped) {
  *dropped = CuptiStub::get().take_dropped();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind /*kind*/,
                                                   uint64_t /*id*/) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind /*kind*/,
                                                  uint64_t* last) {
  *last = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_INVALID_KIND ? "CUPTI_ERROR_INVALID_KIND" : "CUPTI_ERROR";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain /*domain*/, uint32_t id, const char** name) {
  *name = id == shardlens::record::kLaunch ? "cudaLaunchKernel_v7000" : "cudaOther_v7000";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType /*type*/) {
  return CUPTI_SUCCESS;
}

}  // extern "C"
