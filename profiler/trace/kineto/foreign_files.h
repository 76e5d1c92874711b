#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace shardlens::trace {

// A file that is read as a trace and is none. In a directory it is left out, with a warning.
class NotATrace : public InputError {
 public:
  using InputError::InputError;
};

// A kind of file that is no trace of PyTorch's profiler, and how it is recognized. The first row of
// foreign_kinds() that matches counts.
struct ForeignKind {
  enum class By : uint8_t {
    kBytes,  // `mark` at `offset` of the content, and `also` in its first kHeadBytes, if not empty
    kName,   // the file's name ends with `mark`, and its content is not JSON
    kKeys,   // a JSON object with the top-level key `mark`, and `also`, if not empty
  };
  By by = By::kBytes;
  size_t offset = 0;
  std::string_view mark, also;
  std::string_view what;  // "a PNG image"
  std::string_view help;  // what reads it, or makes a trace instead; "": nothing of the kind
};
[[nodiscard]] std::span<const ForeignKind> foreign_kinds();

// So many bytes of a file's content are looked at.
inline constexpr size_t kHeadBytes = 4096;

// The kind of a file whose content (of a compressed one: inflated) begins with `head`; nullptr: not
// known, or it may be a trace.
[[nodiscard]] const ForeignKind* foreign_kind(std::string_view name, std::string_view head);
// The kind of a JSON object with these top-level keys, and no list of events; nullptr: not known.
[[nodiscard]] const ForeignKind* foreign_json(const std::vector<std::string>& keys);
// "not a trace, but a PNG image", with what helps.
[[nodiscard]] std::string words_of(const ForeignKind& kind);

}  // namespace shardlens::trace
