#pragma once

#include <chrono>
#include <functional>

#include "core/base/error.h"
#include "gui/app/program_options.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {

inline constexpr std::chrono::minutes kLongestRun{30};  // time limit of an unattended run

// Does what the command line asks for once the run is loaded: --step, --select, --range, plans and
// machines, --compare and --panel. Without a run it does nothing. Errors: UsageError, InputError.
void apply_options(const ProgramOptions& options, MainWindow& window);
// Opens the dialog of --dialog. Errors: UsageError if there is no such dialog.
void open_dialog(const QString& name, MainWindow& window);
// apply_options(), then the self-test, figures and picture that were asked for. `warnings` returns
// how often Qt has warned. Errors: also RuntimeFault if the picture cannot be written.
[[nodiscard]] ExitCode run_unattended(const ProgramOptions& options,
                                      MainWindow& window,
                                      const std::function<int()>& warnings);

}  // namespace shardlens::gui
