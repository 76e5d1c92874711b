#pragma once

#include <cstdint>

#include "core/base/units.h"

// Contents of a spool's records (spool_format.h) that describe what a device did. Correlations
// connect the records.
namespace shardlens::trace {

struct SpoolKernel {           // a kernel
  uint32_t name, correlation;  // `name`: id of a text, here and below
  Nanoseconds start, end;
  uint32_t stream;
  uint32_t grid[3];
  uint16_t block[3];
  uint16_t registers;  // per thread
  uint32_t shared_memory;
  uint16_t context;
  uint8_t device;
  uint8_t occupancy;  // percent; kNoOccupancy: not known
};
inline constexpr uint8_t kNoOccupancy = 255;

struct SpoolCopy {  // a memcpy or memset
  uint32_t name, correlation;
  Nanoseconds start, end;
  int64_t bytes;
  uint32_t stream;
  uint16_t context;
  uint8_t device, is_memset;
  char reserved[16];
};

struct SpoolGraphNode {  // the CUDA graph node of a kernel or copy: same correlation, start, stream
  uint64_t node;
  Nanoseconds start;
  uint32_t correlation, stream, graph;
  char reserved[28];
};

struct SpoolApiCall {  // a call of CUDA's runtime or driver
  uint32_t name, correlation, thread;
  uint8_t is_driver, reserved1[3];
  Nanoseconds start, end;
  char reserved2[24];
};

struct SpoolSync {      // a wait, on the host or of a stream
  uint64_t event_sync;  // event_sync of the awaited SpoolEventRecord; 0: not known
  Nanoseconds start, end;
  uint32_t correlation, context, event;
  uint32_t stream;  // kNoStream: none
  uint8_t kind;     // SyncKind
  char reserved[15];
};
inline constexpr uint32_t kNoStream = 0xffffffffU;

struct SpoolEventRecord {  // a cudaEventRecord
  uint64_t event_sync;
  Nanoseconds time;  // on the device; 0: not known
  uint32_t correlation, context, stream, event;
  uint8_t device;
  char reserved[23];
};

struct SpoolExternal {  // the external id that was set when the call was made
  uint64_t id;
  uint32_t correlation;
  char reserved[44];
};

struct SpoolOverhead {  // time that the device's recorder took
  Nanoseconds start, end;
  uint32_t name;
  char reserved[36];
};

struct SpoolMemory {       // device memory allocated from the driver or returned to it
  int64_t address, bytes;  // `bytes` < 0: returned
  Nanoseconds time;
  uint32_t correlation;
  uint8_t device;
  char reserved[27];
};

struct SpoolAnnotation {  // an NVTX range of the program, not of Shardlens
  Nanoseconds start, end;
  uint32_t name, thread;
  char reserved[32];
};

}  // namespace shardlens::trace
