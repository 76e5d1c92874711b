#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/base/collective.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/files/output_file.h"
#include "core/files/output_folder.h"
#include "core/schedule/action.h"

namespace shardlens::record {

struct NowLayout;

// A small file that a rank maps and keeps updated with what it is doing (read_rank_now). It is
// readable even if the rank is killed at any instant, because the kernel owns the page. If the disk
// has no room for the file, the rank continues without it and error() gives the reason.
//
// Threads     all functions are for the training thread (or serialised with it), except
//             completed(), which any thread may call.
// Errors      the constructor throws RuntimeFault if the file cannot be created; the other
//             functions never throw.
class NowPage {
 public:
  explicit NowPage(const std::filesystem::path& path);
  ~NowPage();  // keeps the file
  NowPage(const NowPage&) = delete;
  NowPage& operator=(const NowPage&) = delete;

  // Stores those that fit; others are read as "unit 123".
  void units(std::span<const std::string> fqns);
  void step(int64_t step, bool inside);
  void hook(Hook hook, UnitId unit);
  void action(uint32_t seq, const schedule::Action& action);
  void completed(CollectiveKind kind, UnitId unit);
  void finish();
  // Removes the file, unless another one has its name now. The page stays usable.
  void remove() noexcept;
  [[nodiscard]] const std::string& error() const { return error_; }  // "": the file exists

 private:
  void publish(OutputFile& file, const std::filesystem::path& path);

  std::optional<OutputFolder> folder_;  // none: there is no file
  std::string name_;
  std::optional<FileIdentity> made_;
  NowLayout* page_ = nullptr;
  std::string error_;
  schedule::Op last_issued_[schedule::kStreamCount] = {};
  UnitId last_issued_unit_[schedule::kStreamCount] = {};
};

}  // namespace shardlens::record
