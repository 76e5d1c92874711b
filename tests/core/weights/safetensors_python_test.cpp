#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/weights/safetensors.h"
#include "core/weights/safetensors_writer.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::models {
namespace {

using testing::TemporaryDirectory;

// Needs SHARDLENS_TEST_PYTHON, a Python interpreter with safetensors; scripts/test sets it.
class SafetensorsPythonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("SHARDLENS_TEST_PYTHON");
    if (python == nullptr) {
      GTEST_SKIP() << "SHARDLENS_TEST_PYTHON is not set";
    }
    python_ = python;
  }
  [[nodiscard]] int run(const std::string& script, const std::string& argument) const {
    return std::system(("'" + python_ + "' -c '" + script + "' '" + argument + "'").c_str());
  }
  std::string python_;
};

TEST_F(SafetensorsPythonTest, PythonReadsWhatIsWritten) {
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "out.safetensors").string();
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> half{0x3F80, 0xC000};
  SafetensorsWriter writer(
      path, {{"x", DType::kF32, {2, 3}}, {"b", DType::kBF16, {2}}, {"none", DType::kF32, {0, 4}}});
  writer.append(std::as_bytes(std::span(values)));
  writer.append(std::as_bytes(std::span(half)));
  writer.append({});
  writer.finish();
  EXPECT_EQ(run("import sys, torch\n"
                "from safetensors import safe_open\n"
                "from safetensors.torch import load_file\n"
                "t = load_file(sys.argv[1])\n"
                "assert t[\"x\"].tolist() == [[1, 2, 3], [4, 5, 6]]\n"
                "assert t[\"b\"].dtype == torch.bfloat16 and t[\"b\"].tolist() == [1, -2]\n"
                "assert tuple(t[\"none\"].shape) == (0, 4)\n"
                "assert safe_open(sys.argv[1], \"pt\").metadata() == {\"format\": \"pt\"}\n",
                path),
            0);
}

TEST_F(SafetensorsPythonTest, ReadsWhatPythonWrites) {
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "in.safetensors").string();
  ASSERT_EQ(run("import sys, torch\n"
                "from safetensors.torch import save_file\n"
                "x = torch.arange(6.)\n"
                "save_file({\"f\": x, \"h\": x.half(), \"b\": x.bfloat16(), \"i\": x.long()}, "
                "sys.argv[1])\n",
                path),
            0);
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const char* name : {"f", "h", "b"}) {
    std::vector<float> out(6);
    checkpoint.read(checkpoint.at(name), 0, out);
    EXPECT_EQ(out, (std::vector<float>{0, 1, 2, 3, 4, 5})) << name;
  }
  std::vector<float> out(6);
  EXPECT_THROW(checkpoint.read(checkpoint.at("i"), 0, out), std::exception);
}

}  // namespace
}  // namespace shardlens::models
