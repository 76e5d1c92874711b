#pragma once

#include <string_view>
#include <type_traits>

#include "core/base/show.h"
#include "core/base/shown.h"

// The only way to stdout and stderr, checked by .ci/check_sources.py. Text for people is Shown, or
// a format and values that are escaped; data for programs says so.
namespace shardlens {

// Errors: RuntimeFault if writing to stdout fails (a full disk).
void write_stdout(const Shown& text);
template <class... T>
void write_stdout(ShownFormat<std::type_identity_t<T>...> format, const T&... values) {
  write_stdout(show<T...>(format, values...));
}

// Never throws: a message that cannot be written is lost.
void write_stderr(const Shown& text);
template <class... T>
void write_stderr(ShownFormat<std::type_identity_t<T>...> format, const T&... values) {
  write_stderr(show<T...>(format, values...));
}

// Writes to stdout what a program reads: JSON, CSV, a script; text whose format has its own way to
// quote untrusted strings. Errors: as write_stdout.
void write_data(std::string_view text);

void flush_stdout();

}  // namespace shardlens
