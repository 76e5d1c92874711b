#pragma once

namespace shardlens::test {

// Whether AddressSanitizer is on. Everything takes ten to twenty times as long with it, so tests
// that try thousands of inputs try fewer: the others are tried by the same tests without it.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace shardlens::test
