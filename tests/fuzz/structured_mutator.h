#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>

namespace shardlens::fuzz {

// What the bytes of an input are.
enum class Form : uint8_t {
  kBytes,          // no structure that is known here
  kJson,           // one document
  kJsonLines,      // one document a line
  kJsonAfterByte,  // one document after a byte that chooses what it is for
  kMessagePack,
};

// The form of an input of this program's target; each target defines it.
Form form_of(std::string_view input);

// A valid input of the same form with other values, members or elements: bytes that are changed at
// random seldom leave a large document valid, so they mostly reach its parser. nullopt if `input`
// does not have the form.
std::optional<std::string> mutate_structure(std::string_view input,
                                            Form form,
                                            std::mt19937_64& random);

}  // namespace shardlens::fuzz
