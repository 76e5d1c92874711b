#include "core/files/input_file.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr InputLimits kFile{.most_bytes = 1 << 20};
constexpr InputLimits kPipe{
    .most_bytes = 1 << 20, .pipes = true, .wait = std::chrono::milliseconds(20)};

// The message of the InputError that `read` throws.
std::string message_of(const std::function<void()>& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

class InputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "shardlens-input-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path written(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  // A pipe that `write` writes to on another thread, while this one reads it.
  [[nodiscard]] std::string read_pipe(const std::function<void(int)>& write) const {
    const fs::path path = folder_ / "pipe";
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    std::string text;
    const std::jthread writer([&] {
      const int fd = ::open(path.c_str(), O_WRONLY);
      write(fd);
      ::close(fd);
    });
    return read_input(path, {.most_bytes = 1 << 20, .pipes = true});
  }

  fs::path folder_;
};

TEST_F(InputFileTest, ReadsAFile) {
  const std::string text(200'000, 'x');
  EXPECT_EQ(read_input(written("a", text), kFile), text);
  EXPECT_EQ(read_input(written("empty", ""), kFile), "");
  EXPECT_EQ(InputFile(folder_ / "a", kFile).size(), 200'000U);
}

TEST_F(InputFileTest, ReadsAPipeToItsEnd) {
  EXPECT_EQ(read_pipe([](int fd) {
              EXPECT_EQ(::write(fd, "what it ", 8), 8);
              EXPECT_EQ(::write(fd, "wrote", 5), 5);
            }),
            "what it wrote");
}

TEST_F(InputFileTest, APipeWhoseWriterWroteNothingIsEmpty) {
  EXPECT_EQ(read_pipe([](int) {}), "");
}

TEST_F(InputFileTest, APipeWithoutAWriterIsGivenUp) {
  ASSERT_EQ(::mkfifo((folder_ / "p").c_str(), 0600), 0);
  EXPECT_THAT(
      message_of([&] { (void)read_input(folder_ / "p", kPipe); }),
      AllOf(HasSubstr((folder_ / "p").string()), HasSubstr("nothing was written for 0.02 s")));
}

TEST_F(InputFileTest, APipeWhoseWriterStopsIsGivenUp) {
  ASSERT_EQ(::mkfifo((folder_ / "p").c_str(), 0600), 0);
  const int both = ::open((folder_ / "p").c_str(), O_RDWR);  // a writer that does not close
  ASSERT_EQ(::write(both, "begin", 5), 5);
  EXPECT_THAT(message_of([&] { (void)read_input(folder_ / "p", kPipe); }),
              HasSubstr("nothing was written"));
  ::close(both);
}

TEST_F(InputFileTest, OtherKindsAreRefused) {
  ASSERT_EQ(::mkfifo((folder_ / "p").c_str(), 0600), 0);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (folder_ / "s").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const auto& [path, what] : std::initializer_list<std::pair<fs::path, const char*>>{
           {folder_, "is a directory, expected a file"},
           {folder_ / "p", "is a pipe, expected a file"},
           {folder_ / "s", "is a socket, expected a file"},
           {"/dev/zero", "is a device, expected a file"},
           {folder_ / "none", "no such file"}}) {
    EXPECT_THAT(message_of([&path = path] { (void)read_input(path, kFile); }),
                AllOf(HasSubstr(path.string()), HasSubstr(what)));
  }
  ::close(fd);
}

TEST_F(InputFileTest, TheSizeIsLimited) {
  const fs::path sparse = written("sparse", "");
  fs::resize_file(sparse, uint64_t{30} << 30);
  EXPECT_THAT(message_of([&] { (void)read_input(sparse, kFile); }), HasSubstr("larger than 1 MiB"));
  EXPECT_NO_THROW(InputFile(sparse, {.most_bytes = uint64_t{30} << 30}));
}

TEST_F(InputFileTest, TheSizeIsLimitedWhileTheFileGrows) {
  const fs::path path = written("a", std::string(100, 'x'));
  InputFile file(path, {.most_bytes = 100});
  std::string block(64, '\0');
  EXPECT_EQ(file.read(block.data(), block.size()), 64U);
  std::ofstream(path, std::ios::app) << std::string(64, 'y');
  EXPECT_THAT(message_of([&] {
                while (file.read(block.data(), block.size()) != 0) {
                }
              }),
              HasSubstr("larger than 100 bytes"));
}

TEST_F(InputFileTest, FilesWithoutASizeAreLimited) {
  EXPECT_THAT(read_input("/proc/self/comm", kFile), HasSubstr("files_test"));
  EXPECT_THAT(message_of([] { (void)read_input("/proc/self/maps", {.most_bytes = 10}); }),
              HasSubstr("larger than 10 bytes"));
}

TEST_F(InputFileTest, LinesHaveNoEnds) {
  const auto lines_of = [this](const std::string& text) {
    InputLines lines(written("a", text), {.most_bytes = 64 << 20});
    std::vector<std::string> out;
    for (std::string line; lines.next(line);) {
      out.push_back(line);
    }
    return std::pair(out, lines.ended());
  };
  const std::string longer(100'000, 'x');  // than a block
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of(""), std::pair(Lines{}, true));
  EXPECT_EQ(lines_of("a\n\nb\n"), std::pair(Lines({"a", "", "b"}), true));
  EXPECT_EQ(lines_of(longer + "\nb"), std::pair(Lines({longer, "b"}), false));
  EXPECT_THAT(message_of([&] { (void)lines_of("a\n" + std::string((16 << 20) + 1, 'x')); }),
              HasSubstr("line 2 is longer than 16 MiB"));
}

TEST_F(InputFileTest, HasFile) {
  EXPECT_TRUE(has_file(written("a", "")));
  EXPECT_FALSE(has_file(folder_ / "none"));
  EXPECT_FALSE(has_file(folder_ / "a/b"));
  fs::create_symlink("loop", folder_ / "loop");
  fs::create_symlink("none", folder_ / "dangling");
  EXPECT_FALSE(has_file(folder_ / "dangling"));
  EXPECT_THROW((void)has_file(folder_), InputError);
  EXPECT_THROW((void)has_file(folder_ / "loop"), InputError);
}

TEST_F(InputFileTest, LinksThatLeadOut) {
  const fs::path model = folder_ / "snapshots/1";
  fs::create_directories(model / "inner");
  fs::create_directories(folder_ / "blobs");
  (void)written("secret", "");
  (void)written("blobs/b", "");
  (void)written("snapshots/1/a", "");
  fs::create_symlink("a", model / "within");
  fs::create_symlink("../../blobs/b", model / "cached");
  fs::create_symlink("../../secret", model / "out");
  fs::create_symlink(model, folder_ / "link");
  EXPECT_FALSE(leads_out_of_directory(model / "a"));
  EXPECT_FALSE(leads_out_of_directory(model / "within"));
  EXPECT_FALSE(leads_out_of_directory(model / "cached"));
  EXPECT_FALSE(leads_out_of_directory(folder_ / "link/a"));
  EXPECT_TRUE(leads_out_of_directory(model / "out"));
  EXPECT_TRUE(leads_out_of_directory(folder_ / "link/out"));
  fs::create_directories(folder_ / "runs/1");  // no cache of models
  fs::create_symlink("../../blobs/b", folder_ / "runs/1/out");
  EXPECT_TRUE(leads_out_of_directory(folder_ / "runs/1/out"));
}

}  // namespace
}  // namespace shardlens
