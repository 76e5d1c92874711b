#include "core/dist/delay_kernel.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::dist {
namespace {

using testing::HasSubstr;

// A100, H100 and H200, B200. Compiling needs no device.
TEST(DelayKernelTest, CompilesForTheArchitecturesOfTheNamedHardware) {
  for (const int capability : {80, 90, 100}) {
    const std::vector<char> code = compile_delay_kernels(capability);
    const std::string text(code.begin(), code.end());
    EXPECT_TRUE(
        text.starts_with("\x7f"
                         "ELF"));
    for (const char* name :
         {"ncclDevKernel_AllGather_EMULATED", "ncclDevKernel_ReduceScatter_EMULATED",
          "ncclDevKernel_AllReduce_EMULATED", "ncclDevKernel_Broadcast_EMULATED"}) {
      EXPECT_THAT(text, HasSubstr(name));
    }
  }
}

TEST(DelayKernelTest, AnArchitectureThatDoesNotExistIsAMessage) {
  EXPECT_THAT(test::message_of<RuntimeFault>([] { static_cast<void>(compile_delay_kernels(1)); }),
              HasSubstr("emulated collective"));
}

// The kernels' source compiled as a program of the host, where threads run one after the other and
// every read of the clock takes a microsecond.
class DelayKernelOnTheHost : public testing::Test {
 protected:
  using Kernel = void (*)(const void*,
                          void*,
                          unsigned long long,
                          int,
                          int,
                          int,
                          unsigned long long,
                          unsigned long long);

  static void SetUpTestSuite() {
    directory_ = new test::TemporaryDirectory;
    std::string source(delay_source());
    const std::string timer = R"(asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));)";
    const size_t at = source.find(timer);
    ASSERT_NE(at, std::string::npos);
    source.replace(at, timer.size(), "t = host_time += 1000;");
    const std::string path = directory_->path() / "delay.cpp";
    std::ofstream(path) << R"(
#define __device__
#define __global__
#define __launch_bounds__(n)
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };
extern "C" {
Index threadIdx, blockIdx, blockDim, gridDim;
unsigned long long host_time = 0;
}
static long long clock64() { return (long long)host_time; }
static void __nanosleep(unsigned) {}
)" << source;
    const std::string library = directory_->path() / "delay.so";
    const std::string command = "c++ -std=c++17 -O1 -w -shared -fPIC -o " + library + " " + path;
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    library_ = dlopen(library.c_str(), RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  static void TearDownTestSuite() { delete directory_; }

  template <typename T>
  static T& global(const char* name) {
    return *static_cast<T*>(dlsym(library_, name));
  }
  // As launch_delay() would; returns the nanoseconds that the first thread took.
  static unsigned long long run(const char* name,
                                const void* in,
                                void* out,
                                unsigned long long bytes,
                                int rank,
                                int ranks,
                                int unit,
                                unsigned long long duration,
                                unsigned long long bound = 1ULL << 60) {
    const auto kernel = reinterpret_cast<Kernel>(dlsym(library_, name));
    constexpr unsigned kBlocks = 3, kThreads = 64;
    global<unsigned>("gridDim") = kBlocks;
    global<unsigned>("blockDim") = kThreads;
    unsigned long long first = 0;
    for (unsigned block = 0; block < kBlocks; ++block) {
      for (unsigned thread = 0; thread < kThreads; ++thread) {
        global<unsigned>("blockIdx") = block;
        global<unsigned>("threadIdx") = thread;
        const unsigned long long begin = global<unsigned long long>("host_time");
        kernel(in, out, bytes / static_cast<unsigned>(unit), rank, ranks, unit, duration, bound);
        first = first == 0 ? global<unsigned long long>("host_time") - begin : first;
      }
    }
    return first;
  }
  static std::vector<unsigned char> numbered(size_t bytes) {
    std::vector<unsigned char> values(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      values[i] = static_cast<unsigned char>(i * 131 + i / 251);
    }
    return values;
  }
  static test::TemporaryDirectory* directory_;
  static void* library_;
};
test::TemporaryDirectory* DelayKernelOnTheHost::directory_ = nullptr;
void* DelayKernelOnTheHost::library_ = nullptr;

TEST_F(DelayKernelOnTheHost, AnAllGatherRepeatsTheOwnShard) {
  for (const int unit : {16, 4, 2, 1}) {
    const size_t slice = static_cast<size_t>(unit) * 1237;  // not a multiple of the threads
    const std::vector<unsigned char> in = numbered(slice);
    std::vector<unsigned char> out(4 * slice + 1, 77);
    run("ncclDevKernel_AllGather_EMULATED", in.data(), out.data(), slice, 2, 4, unit, 50'000);
    for (size_t i = 0; i < 4 * slice; ++i) {
      ASSERT_EQ(out[i], in[i % slice]) << "unit " << unit << ", byte " << i;
    }
    EXPECT_EQ(out.back(), 77);  // nothing is written beyond the end
  }
}

TEST_F(DelayKernelOnTheHost, AnAllGatherFromItsOwnSliceInPlace) {
  const size_t slice = 16 * 100;
  std::vector<unsigned char> out(3 * slice);
  const std::vector<unsigned char> in = numbered(slice);
  std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(slice));
  run("ncclDevKernel_AllGather_EMULATED", out.data() + slice, out.data(), slice, 1, 3, 16, 50'000);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], in[i % slice]) << "byte " << i;
  }
}

TEST_F(DelayKernelOnTheHost, AReduceScatterKeepsTheOwnChunk) {
  for (const int unit : {16, 4, 2, 1}) {
    const size_t slice = static_cast<size_t>(unit) * 555;
    const std::vector<unsigned char> in = numbered(4 * slice);
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<unsigned char> out(slice + 1, 77);
      run("ncclDevKernel_ReduceScatter_EMULATED", in.data(), out.data(), slice, rank, 4, unit,
          50'000);
      for (size_t i = 0; i < slice; ++i) {
        ASSERT_EQ(out[i], in[static_cast<size_t>(rank) * slice + i]) << "rank " << rank;
      }
      EXPECT_EQ(out.back(), 77);
    }
  }
}

TEST_F(DelayKernelOnTheHost, AllReducesAndBroadcastsLeaveTheirTensor) {
  for (const char* name :
       {"ncclDevKernel_AllReduce_EMULATED", "ncclDevKernel_Broadcast_EMULATED"}) {
    std::vector<unsigned char> tensor = numbered(16 * 321);
    const std::vector<unsigned char> before = tensor;
    run(name, tensor.data(), tensor.data(), tensor.size(), 0, 8, 16, 50'000);
    EXPECT_EQ(tensor, before) << name;
  }
}

// It does not end early, nor late by more than a few reads of the clock; also with nothing to copy.
TEST_F(DelayKernelOnTheHost, ItTakesTheTimeItWasGiven) {
  for (const size_t slice : {size_t{0}, size_t{16} * 5000}) {
    const std::vector<unsigned char> in = numbered(slice);
    std::vector<unsigned char> out(8 * slice);
    const auto took =
        run("ncclDevKernel_AllGather_EMULATED", in.data(), out.data(), slice, 0, 8, 16, 700'000);
    EXPECT_GE(took, 700'000);
    EXPECT_LE(took, 800'000);
  }
}

TEST_F(DelayKernelOnTheHost, ItGivesUpAtItsBound) {
  const auto took = run("ncclDevKernel_AllReduce_EMULATED", nullptr, nullptr, 0, 0, 8, 16,
                        1ULL << 50, /*bound=*/3'000'000);
  EXPECT_LE(took, 4'000'000);
}

}  // namespace
}  // namespace shardlens::dist
