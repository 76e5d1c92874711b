#include "core/checkpoint/whole_tensors.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/checkpoint_verify.h"
#include "core/checkpoint/rank_part.h"
#include "core/checkpoint/save_directory.h"
#include "core/files/directory_lock.h"
#include "core/files/output_folder.h"
#include "core/weights/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kNumel = 35;
const std::vector<int64_t> kWholeShape{7, 5};

std::vector<float> values() {
  std::vector<float> out(kNumel);
  std::iota(out.begin(), out.end(), 1.0F);
  return out;
}

// A checkpoint of two ranks, of one matrix and its state.
fs::path saved_in(const fs::path& root) {
  const std::vector<float> all = values();
  const SaveDirectory directory(root, random_identifier());
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto mine = std::span(all).subspan(rank == 0 ? 0 : 18, rank == 0 ? 18 : 17);
    const std::vector<TensorPart> parts{
        {"w", DType::kF32, kWholeShape, rank * 18, std::as_bytes(mine)},
        {state_name("w", "exp_avg"), DType::kF32, kWholeShape, rank * 18, std::as_bytes(mine)},
        {name_on_rank(rank, "rng.cpu"), DType::kF32, {1}, 0, std::as_bytes(mine.first(1))}};
    write_rank_part(directory.begin(4), rank, parts);
  }
  return directory.commit({4, 48, 8, {}}, {2, 1, 2, "fsdp2", "flat", "sgd"}, {});
}

std::vector<float> read(const fs::path& folder, const std::string& name) {
  Reader reader = Reader::open(folder);
  std::vector<float> out(kNumel);
  reader.read(reader.at(name), 0, out);
  return out;
}

TEST(WholeTensorsTest, AnotherNumberOfRanksHasTheSameValues) {
  const TemporaryDirectory directory;
  const fs::path saved = saved_in(directory.path());
  for (const int64_t ranks : {1, 2, 3, 9}) {
    const fs::path out = directory.path() / ("of" + std::to_string(ranks));
    reshard(saved, out, ranks);
    EXPECT_EQ(read(out, "w"), values());
    EXPECT_EQ(read(out, "state.w.exp_avg"), values());
    Reader reader = Reader::open(out);
    EXPECT_EQ(reader.index().position.samples, 48);
    EXPECT_EQ(reader.index().origin.world_size, ranks);
    EXPECT_EQ(reader.index().files.size(), static_cast<size_t>(ranks))
        << "chunks of rows are blocks";
    EXPECT_EQ(reader.find("rank1.rng.cpu") != nullptr, ranks == 2);
  }
  EXPECT_THROW(reshard(saved, directory.path() / "of2", 2), UsageError);
}

TEST(WholeTensorsTest, AMergedModelIsWholeAndItsStateIsApart) {
  const TemporaryDirectory directory;
  const fs::path saved = saved_in(directory.path());
  merge(saved, directory.path() / "merged", true);
  const auto model = models::Checkpoint::open(directory.path() / "merged");
  ASSERT_THAT(model.tensors(), SizeIs(1));
  std::vector<float> out(kNumel);
  model.read(model.at("w"), 0, out);
  EXPECT_EQ(out, values());
  const auto state = models::Checkpoint::open(directory.path() / "merged/optimizer.safetensors");
  ASSERT_THAT(state.tensors(), SizeIs(1));
  state.read(state.at("state.w.exp_avg"), 0, out);
  EXPECT_EQ(out, values());
  // Back from the merged model, which has no index.
  fs::remove(directory.path() / "merged/optimizer.safetensors");
  reshard(directory.path() / "merged", directory.path() / "again", 2);
  EXPECT_EQ(read(directory.path() / "again", "w"), values());
}

TEST(WholeTensorsTest, VerifyNamesEveryDamagedPiece) {
  const TemporaryDirectory directory;
  const fs::path saved = saved_in(directory.path());
  Reader whole = Reader::open(saved);
  const Verification good = verify(whole);
  EXPECT_THAT(good.damaged, SizeIs(0));
  EXPECT_EQ(good.bytes, (2 * kNumel + 2) * 4);
  EXPECT_EQ(good.without_checksum, 0);
  // The last four bytes of the file are the last tensor's, the generator of rank 0.
  const fs::path file = saved / "rank00000.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-1, std::ios::end);
  bytes.put('x');
  bytes.close();
  Reader reader = Reader::open(saved);
  const Verification bad = verify(reader);
  ASSERT_THAT(bad.damaged, SizeIs(1));
  EXPECT_THAT(bad.damaged.front(), HasSubstr("tensor 'rank0.rng.cpu'"));
  fs::remove(file);
  Reader missing = Reader::open(saved);
  EXPECT_THAT(verify(missing).damaged, SizeIs(testing::Ge(3U)));
}

using Write = void (*)(const fs::path&, const fs::path&);
const Write kWrites[] = {[](const fs::path& path, const fs::path& out) { merge(path, out, false); },
                         [](const fs::path& path, const fs::path& out) { reshard(path, out, 2); }};

// Unfinished outputs of other programs, and what has the name of the output.
TEST(WholeTensorsTest, ForeignFilesStay) {
  for (const Write write : kWrites) {
    const TemporaryDirectory directory;
    const fs::path saved = saved_in(directory.path() / "saved");
    const fs::path out = directory.path() / "c";
    fs::create_directory(directory.path() / "c.tmp");
    std::ofstream(directory.path() / "c.tmp" / "diary.txt") << "kept";
    fs::create_directory(directory.path() / ("c.tmp" + std::string(32, 'a')));
    std::ofstream(directory.path() / ("c.tmp" + std::string(32, 'a')) / "model.safetensors") << "x";
    write(saved, out);
    EXPECT_TRUE(fs::exists(directory.path() / "c.tmp" / "diary.txt"));
    EXPECT_TRUE(
        fs::exists(directory.path() / ("c.tmp" + std::string(32, 'a')) / "model.safetensors"));
    EXPECT_TRUE(fs::exists(out));
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 4) << "no lock is left";
    for (const char* name : {"c", "empty", "link", "file", "."}) {
      const fs::path other = directory.path() / name;
      fs::create_directory(directory.path() / "empty");
      std::error_code ignored;
      fs::create_symlink("nowhere", directory.path() / "link", ignored);
      { const std::ofstream file(directory.path() / "file", std::ios::app); }
      EXPECT_THAT([&] { write(saved, other); },
                  testing::ThrowsMessage<UsageError>(HasSubstr("exists already")))
          << name;
    }
    EXPECT_TRUE(fs::is_empty(directory.path() / "empty"));
  }
}

TEST(WholeTensorsTest, OneProcessAtATimeWritesAnOutput) {
  for (const Write write : kWrites) {
    const TemporaryDirectory directory;
    const fs::path saved = saved_in(directory.path() / "saved");
    const fs::path out = directory.path() / "c";
    {
      const DirectoryLock lock({directory.path() / "c.lock", "", ""});
      EXPECT_THAT([&] { write(saved, out); },
                  testing::ThrowsMessage<UsageError>(
                      HasSubstr("process " + std::to_string(::getpid()) + " of ")));
      EXPECT_FALSE(fs::exists(out));
    }
    // What a process that was killed has left.
    const std::string id = random_identifier();
    const fs::path left = directory.path() / ("c.tmp" + id);
    fs::create_directory(left);
    std::ofstream(left / ("unfinished." + id)) << id;
    std::ofstream(left / "rank00000.safetensors") << "x";
    std::ofstream(left / ("model.safetensors.tmp" + id)) << "x";
    std::ofstream(directory.path() / "c.lock") << "4711 elsewhere\n";
    write(saved, out);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 2);
  }
}

TEST(WholeTensorsTest, AnErrorLeavesNothing) {
  for (const Write write : kWrites) {
    const TemporaryDirectory directory;
    const fs::path saved = saved_in(directory.path() / "saved");
    fs::resize_file(saved / "rank00001.safetensors",
                    fs::file_size(saved / "rank00001.safetensors") - 1);
    EXPECT_THROW(write(saved, directory.path() / "c"), InputError);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
  }
}

// A link out of a checkpoint would copy a file of the user that its maker chose.
TEST(WholeTensorsTest, LinksOutOfTheDirectoryAreNotCopied) {
  for (const Write write : kWrites) {
    for (const char* name : {"config.json", "generation_config.json"}) {
      const TemporaryDirectory directory;
      const fs::path saved = saved_in(directory.path() / "saved");
      std::ofstream(directory.path() / "secret") << "{}";
      fs::create_symlink("../../secret", saved / name);
      EXPECT_THAT([&] { write(saved, directory.path() / "c"); },
                  testing::ThrowsMessage<InputError>(
                      testing::AllOf(HasSubstr(name), HasSubstr("is a link to "))));
      EXPECT_FALSE(fs::exists(directory.path() / "c"));
      fs::remove(saved / name);
      std::ofstream(saved / "inside") << "{}";
      fs::create_symlink("inside", saved / name);
      write(saved, directory.path() / "c");
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(directory.path() / "c" / name)));
    }
  }
}

// models--x/snapshots/REVISION/config.json -> ../../blobs/HASH
TEST(WholeTensorsTest, LinksOfTheHuggingFaceCacheAreCopied) {
  const TemporaryDirectory directory;
  const fs::path snapshot = directory.path() / "snapshots" / "0a1b";
  fs::create_directory(directory.path() / "blobs");
  merge(saved_in(directory.path() / "saved"), snapshot, false);
  std::ofstream(directory.path() / "blobs" / "77") << R"({"kept": 1})";
  fs::create_symlink("../../blobs/77", snapshot / "generation_config.json");
  reshard(snapshot, directory.path() / "c", 2);
  EXPECT_EQ(fs::file_size(directory.path() / "c" / "generation_config.json"), 11);
  EXPECT_EQ(read(directory.path() / "c", "w"), values());
}

}  // namespace
}  // namespace shardlens::checkpoint
