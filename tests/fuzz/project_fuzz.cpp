// Fuzzes project files of the app: any bytes are read, or refused with an InputError; what is
// written reads back the same.
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "gui/model/what_if/project.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/structured_mutator.h"

using namespace shardlens;  // NOLINT: a fuzz target is one file
using fuzz::require;

fuzz::Form fuzz::form_of(std::string_view /*input*/) {
  return Form::kJson;
}

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const char* const kFile = "/runs/p.shardlens";
  try {
    const gui::Project read =
        gui::parse_project({reinterpret_cast<const char*>(data), size}, kFile);
    const std::string written = gui::to_json(read, kFile);
    require(gui::to_json(gui::parse_project(written, kFile), kFile) == written,
            "what is written reads back");
  } catch (const InputError& error) {
    require(error.what()[0] != '\0', "a message says what is wrong");
  }
  return 0;
}
