#include "core/weights/safetensors.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/weights/safetensors_writer.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::raw_file;
using testing::TemporaryDirectory;
using testing::write;

std::string message_of(const std::filesystem::path& path) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(path);
    return "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
}

std::string message_of_bytes(const std::string& content) {
  const TemporaryDirectory directory;
  return message_of(write(directory.path() / "bad.safetensors", content));
}

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string out;
  for (const T value : values) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return out;
}

std::vector<float> read_all(const Checkpoint& checkpoint, const std::string& name) {
  const TensorEntry& entry = checkpoint.at(name);
  std::vector<float> out(static_cast<size_t>(entry.numel));
  checkpoint.read(entry, 0, out);
  return out;
}

TEST(CheckpointTest, ReadsEveryParameterDType) {
  const TemporaryDirectory directory;
  // 1.5, -2, smallest positive subnormal; bit patterns by hand from the formats' definitions.
  const std::string data =
      bytes_of<float>({1.5F, -2.0F, 1e-45F}) + bytes_of<uint16_t>({0x3FC0, 0xC000, 0x0001}) +
      bytes_of<uint16_t>({0x3E00, 0xC000, 0x0001}) + bytes_of<double>({1.5, -2.0, 0.25});
  const auto path = write(directory.path() / "all.safetensors",
                          raw_file(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                                   R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]},)"
                                   R"("c":{"dtype":"F16","shape":[3,1],"data_offsets":[18,24]},)"
                                   R"("d":{"dtype":"F64","shape":[3],"data_offsets":[24,48]}})",
                                   data));
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_THAT(read_all(checkpoint, "a"), ElementsAre(1.5F, -2.0F, 1e-45F));
  EXPECT_THAT(read_all(checkpoint, "b"), ElementsAre(1.5F, -2.0F, 9.18354962e-41F));  // 2^-133
  EXPECT_THAT(read_all(checkpoint, "c"), ElementsAre(1.5F, -2.0F, 5.9604645e-08F));   // 2^-24
  EXPECT_THAT(read_all(checkpoint, "d"), ElementsAre(1.5F, -2.0F, 0.25F));
  EXPECT_THAT(checkpoint.at("c").shape, ElementsAre(3, 1));
}

TEST(CheckpointTest, ReadsHalfInfinityAndNan) {
  const TemporaryDirectory directory;
  const Checkpoint checkpoint =
      Checkpoint::open(write(directory.path() / "half.safetensors",
                             raw_file(R"({"h":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})",
                                      bytes_of<uint16_t>({0x7C00, 0xFC00, 0x7E00, 0x7BFF}))));
  const auto values = read_all(checkpoint, "h");
  EXPECT_EQ(values[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[3], 65504.0F);
}

TEST(CheckpointTest, ReadsASliceOfUnalignedData) {
  const TemporaryDirectory directory;
  // The header's length is odd, so that the data starts at an odd address.
  std::string header = R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  header.append(header.size() % 2 == 0 ? 1 : 2, ' ');
  const Checkpoint checkpoint = Checkpoint::open(
      write(directory.path() / "odd.safetensors", raw_file(header, bytes_of<float>({1, 2, 3, 4}))));
  std::array<float, 2> out{};
  checkpoint.read(checkpoint.at("w"), 1, out);
  EXPECT_THAT(out, ElementsAre(2.0F, 3.0F));
}

TEST(CheckpointTest, RefusesWhatTheHeaderGetsWrong) {
  const std::string four(4, '\0');
  EXPECT_THAT(message_of_bytes("abc"), HasSubstr("3 bytes are too few"));
  EXPECT_THAT(message_of_bytes(bytes_of<uint64_t>({1ULL << 60U}) + "{}"),
              AllOf(HasSubstr("bad.safetensors: byte 0"), HasSubstr("1152921504606846976 bytes")));
  EXPECT_THAT(message_of_bytes(bytes_of<uint64_t>({100}) + "{}"),
              AllOf(HasSubstr("header of 100 bytes"), HasSubstr("only 2 follow")));
  EXPECT_THAT(message_of_bytes(raw_file("{\"a\":", "")),
              HasSubstr("byte 8: header is not a JSON object"));
  EXPECT_THAT(message_of_bytes(raw_file("[]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(
      message_of_bytes(raw_file(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", four)),
      AllOf(HasSubstr("byte 9: tensor 'a'"), HasSubstr("unknown dtype 'F33'")));
  EXPECT_THAT(
      message_of_bytes(raw_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four)),
      HasSubstr("data_offsets [0, 4] do not have the size of F32 [2]"));
  EXPECT_THAT(message_of_bytes(
                  raw_file(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four)),
              HasSubstr("non-negative integer, found -1"));
  EXPECT_THAT(
      message_of_bytes(raw_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four)),
      HasSubstr("do not have the size of"));
  EXPECT_THAT(
      message_of_bytes(raw_file(
          R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "")),
      HasSubstr("too many elements"));
  EXPECT_THAT(message_of_bytes(raw_file(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four)),
              HasSubstr("expected {\"dtype\""));
}

TEST(CheckpointTest, RefusesOffsetsThatDoNotTileTheData) {
  const auto two = [](int begin, int end) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],)"
           R"("data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}}";
  };
  const std::string twelve(12, '\0');
  EXPECT_THAT(message_of_bytes(raw_file(two(2, 6), twelve)), HasSubstr("tensors overlap"));
  EXPECT_THAT(message_of_bytes(raw_file(two(8, 12), twelve)), HasSubstr("a gap before it"));
  EXPECT_THAT(message_of_bytes(raw_file(two(4, 8), twelve)),
              HasSubstr("4 bytes follow the last tensor"));
  EXPECT_THAT(message_of_bytes(raw_file(two(4, 8), std::string(7, '\0'))),
              AllOf(HasSubstr("tensor 'b'"), HasSubstr("truncated")));
  EXPECT_EQ(message_of_bytes(raw_file(two(4, 8), std::string(8, '\0'))), "no error");
}

TEST(CheckpointTest, RefusesTheSameNameTwice) {
  EXPECT_THAT(message_of_bytes(raw_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                        R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                        std::string(8, '\0'))),
              HasSubstr("tensor 'a' occurs twice"));
}

TEST(CheckpointTest, NamesMissingFilesAndTheNearestTensor) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of(directory.path() / "none.safetensors"),
              AllOf(HasSubstr("none.safetensors"), HasSubstr("no such file")));
  EXPECT_THAT(message_of(directory.path() / std::string(300, 'x')),
              HasSubstr("File name too long"));
  EXPECT_THAT(message_of(directory.path()), HasSubstr("contains neither model.safetensors nor"));
  const Checkpoint checkpoint =
      Checkpoint::open(std::filesystem::path(SHARDLENS_TEST_DATA) / "llama-tiny");
  try {
    (void)checkpoint.at("model.norm.wieght");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the nearest is 'model.norm.weight'"));
  }
}

class ShardedCheckpointTest : public ::testing::Test {
 protected:
  void shard(const std::string& file, const std::string& name, float value) {
    SafetensorsWriter writer(directory_.path() / file, {{name, DType::kF32, {1}}});
    writer.append(std::as_bytes(std::span(&value, 1)));
    writer.finish();
  }
  void index(const std::string& weight_map) {
    write(directory_.path() / "model.safetensors.index.json",
          R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}");
  }
  TemporaryDirectory directory_;
};

TEST_F(ShardedCheckpointTest, ReadsThroughTheIndex) {
  shard("one.safetensors", "a", 1.0F);
  shard("two.safetensors", "b", 2.0F);
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_THAT(read_all(checkpoint, "a"), ElementsAre(1.0F));
  EXPECT_THAT(read_all(checkpoint, "b"), ElementsAre(2.0F));
  EXPECT_EQ(checkpoint.file_of(checkpoint.at("b")).filename(), "two.safetensors");
}

TEST_F(ShardedCheckpointTest, NamesAMissingShardAMisplacedTensorAndAPathThatLeaves) {
  shard("one.safetensors", "a", 1.0F);
  shard("two.safetensors", "b", 2.0F);
  index(R"({"a":"one.safetensors","b":"three.safetensors"})");
  EXPECT_THAT(message_of(directory_.path()), HasSubstr("shard 'three.safetensors' is missing"));
  index(R"({"a":"two.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(message_of(directory_.path()),
              AllOf(HasSubstr("#/weight_map/a"), HasSubstr("not in 'two.safetensors'")));
  index(R"({"a":")" + std::string(300, 'x') + R"("})");
  EXPECT_THAT(message_of(directory_.path()),
              AllOf(HasSubstr("#/weight_map/a"), HasSubstr("xx' is missing")));
  index(R"({"a":"../one.safetensors"})");
  EXPECT_THAT(message_of(directory_.path()), HasSubstr("not the name of a file next to the index"));
  index("3");
  EXPECT_THAT(message_of(directory_.path()), HasSubstr("#/weight_map"));
  write(directory_.path() / "model.safetensors.index.json", "{");
  EXPECT_THAT(message_of(directory_.path()), HasSubstr("not JSON"));
}

TEST_F(ShardedCheckpointTest, ATensorInTwoShardsIsRefused) {
  shard("one.safetensors", "a", 1.0F);
  shard("two.safetensors", "a", 2.0F);
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(message_of(directory_.path()), HasSubstr("'a' occurs twice"));
}

TEST(SafetensorsWriterTest, WritesAnAlignedHeaderAndReadsBack) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "out.safetensors";
  const std::vector<float> first{1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> second{0x3F80};
  {
    SafetensorsWriter writer(path, {{"x", DType::kF32, {2, 3}}, {"scalar", DType::kBF16, {}}});
    writer.append(std::as_bytes(std::span(first)));
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.append(std::as_bytes(std::span(second)));
    writer.finish();
  }
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_EQ(read_all(checkpoint, "x"), first);
  EXPECT_THAT(read_all(checkpoint, "scalar"), ElementsAre(1.0F));
  EXPECT_EQ(checkpoint.at("x").begin % 8, 0);
}

TEST(SafetensorsWriterTest, LeavesNothingWithoutFinish) {
  const TemporaryDirectory directory;
  { SafetensorsWriter writer(directory.path() / "out.safetensors", {{"x", DType::kF32, {2}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(SafetensorsWriterTest, NamesAnUnwritablePath) {
  try {
    SafetensorsWriter writer("/nonexistent-directory/out.safetensors", {});
    FAIL();
  } catch (const RuntimeFault& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/nonexistent-directory/out.safetensors"),
                                    HasSubstr("No such file")));
  }
}

}  // namespace
}  // namespace shardlens::models
