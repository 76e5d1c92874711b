#pragma once

#include <memory>

#include "core/files/directory_lock.h"

#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Locks the directory of --save, which is made if it does not exist. Null without --save.
// Errors: UsageError if something else is in its place, or if another process has it; RuntimeFault
// if it cannot be written.
[[nodiscard]] std::shared_ptr<const DirectoryLock> lock_save_directory(const RunOptions& options);

// Tries whether the directory of --save takes a file and has space for one checkpoint, after what
// interrupted saves have left was removed. Null `lock`: does nothing.
// Errors: RuntimeFault naming what is needed and what is free; UsageError if a whole model would
// replace one that this program did not save.
void try_save_directory(const RunOptions& options,
                        const plan::ResolvedPlan& plan,
                        const DirectoryLock* lock);

}  // namespace shardlens::cli
