#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "core/replicate/replicate.h"

namespace c10d {
class ProcessGroup;
}

namespace shardlens::replicate {

// That all ranks hold parameters of the same number, shapes and strides. A collective. Errors:
// UsageError on every rank that differs from rank 0 (and on rank 0 where another rank differs in
// number of parameters or dimensions), naming the first parameter that does.
void verify_parameters(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<NamedParameter>& parameters);

}  // namespace shardlens::replicate
