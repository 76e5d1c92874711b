#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/weights/safetensors.h"
#include "core/weights/safetensors_writer.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::models {
namespace {

using testing::TemporaryDirectory;
using testing::write;

// Opens a file of any bytes; every tensor that is accepted must be readable in full.
void open_and_touch(const std::filesystem::path& path) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(path);
    for (const TensorEntry& entry : checkpoint.tensors()) {
      unsigned sum = 0;
      for (const std::byte byte : checkpoint.bytes(entry)) {
        sum += static_cast<unsigned>(byte);
      }
      ASSERT_LE(sum, 255U * checkpoint.bytes(entry).size());
    }
  } catch (const InputError& error) {
    ASSERT_NE(std::string(error.what()).find(path.filename().string()), std::string::npos);
  }
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SafetensorsFuzzTest, DamagedFilesAreRefusedOrReadable) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "fuzz.safetensors";
  const std::string original =
      slurp(std::filesystem::path(SHARDLENS_TEST_DATA) / "gpt2-tiny" / "model.safetensors")
          .substr(0, 60000);
  std::mt19937 random(20240607);
  const uint64_t header = [&] {
    uint64_t length = 0;
    std::memcpy(&length, original.data(), sizeof(length));
    return length;
  }();
  for (int round = 0; round < 600; ++round) {
    std::string damaged = original;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      // Mostly in the header, where the structure is.
      const size_t at = random() % (random() % 8 == 0 ? damaged.size() : header + 8);
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged[at] = "0123456789{}[],:\"-"[random() % 18];
          break;
        case 2:
          damaged.erase(at, 1 + random() % 16);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % 1000, random() % 40));
          break;
      }
      if (damaged.size() < 64) {
        damaged = original;
      }
    }
    open_and_touch(write(path, damaged));
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST(SafetensorsFuzzTest, EveryTruncationIsRefused) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "cut.safetensors";
  const std::vector<float> values(16, 1.0F);
  {
    SafetensorsWriter writer(path, {{"a", DType::kF32, {16}}});
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  }
  const std::string whole = slurp(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW((void)Checkpoint::open(write(path, whole.substr(0, size))), InputError) << size;
  }
  EXPECT_NO_THROW((void)Checkpoint::open(write(path, whole)));
}

TEST(SafetensorsFuzzTest, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const auto path = directory.path() / "round.safetensors";
    std::vector<SafetensorsWriter::Tensor> tensors;
    std::vector<std::vector<float>> values;
    const size_t count = random() % 6;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int64_t> shape(random() % 4);
      size_t numel = 1;
      for (int64_t& size : shape) {
        size = static_cast<int64_t>(random() % 5);
        numel *= static_cast<size_t>(size);
      }
      tensors.push_back({"t\"\\" + std::to_string(i) + "é", DType::kF32, shape});
      values.emplace_back(numel);
      for (float& value : values.back()) {
        value = static_cast<float>(random()) / 7.0F;
      }
    }
    {
      SafetensorsWriter writer(path, tensors);
      for (const auto& each : values) {
        writer.append(std::as_bytes(std::span(each)));
      }
      writer.finish();
    }
    const Checkpoint checkpoint = Checkpoint::open(path);
    ASSERT_EQ(checkpoint.tensors().size(), count);
    for (size_t i = 0; i < count; ++i) {
      const TensorEntry& entry = checkpoint.at(tensors[i].name);
      ASSERT_EQ(entry.shape, tensors[i].shape);
      // Any slice equals that part of the whole.
      const auto first = static_cast<int64_t>(values[i].empty() ? 0 : random() % values[i].size());
      std::vector<float> out(values[i].size() - static_cast<size_t>(first));
      checkpoint.read(entry, first, out);
      ASSERT_EQ(out, std::vector<float>(values[i].begin() + first, values[i].end()));
    }
  }
}

}  // namespace
}  // namespace shardlens::models
