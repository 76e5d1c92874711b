#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/base/collective.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/schedule/action.h"

namespace shardlens::record {

struct NowLayout;

// A small file, mapped by a rank, that says where it is (read_rank_now). A kill at any instant
// leaves it readable: the page belongs to the kernel. Where the disk has no room for it, the rank
// goes on without the file, and error() says so.
//
// Threads     the training thread (or what is serialised with it) calls everything but completed(),
//             which any thread may call.
// Errors      the constructor throws RuntimeFault when the file cannot be made; the rest never
//             throws.
class NowPage {
 public:
  explicit NowPage(const std::filesystem::path& path);
  ~NowPage();  // keeps the file
  NowPage(const NowPage&) = delete;
  NowPage& operator=(const NowPage&) = delete;

  void units(std::span<const std::string> fqns);  // those that fit; the rest read as "unit 123"
  void step(int64_t step, bool inside);
  void hook(Hook hook, UnitId unit);
  void action(uint32_t seq, const schedule::Action& action);
  void completed(CollectiveKind kind, UnitId unit);
  void finish();
  [[nodiscard]] const std::string& error() const { return error_; }  // "": the file is there

 private:
  NowLayout* page_ = nullptr;
  std::string error_;
  schedule::Op last_issued_[schedule::kStreamCount] = {};
  UnitId last_issued_unit_[schedule::kStreamCount] = {};
};

}  // namespace shardlens::record
