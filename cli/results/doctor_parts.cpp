#include "cli/results/doctor_parts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/this_process.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/files/output_folder.h"

#include "cli/capture/engine_program.h"
#include "cli/capture/host_info.h"
#include "cli/capture/worker_process.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kNotStarted = 127;  // the exit code of the loader, if a library is missing
constexpr std::chrono::seconds kLongestStart{10};

struct Answer {
  int code = kNotStarted;  // negative: killed by this signal, or after the longest time
  std::string out, err;    // the first line of each
};

Answer ask(const std::string& program,
           const std::vector<std::string>& arguments,
           const std::vector<std::string>& more_environment = {}) {
  std::vector<std::string> environment = more_environment;
  for (const char* name : {"PATH", "HOME", "LD_LIBRARY_PATH", "DISPLAY", "WAYLAND_DISPLAY",
                           "XDG_RUNTIME_DIR", "TMPDIR"}) {
    if (const std::string value = environment_variable(name); !value.empty()) {
      environment.push_back(std::string(name) + "=" + value);
    }
  }
  Answer answer;
  const LineSink keep = [&](int, Output output, std::string_view line) {
    std::string& kept = output == Output::kStdout ? answer.out : answer.err;
    if (kept.empty()) {
      kept = line;
    }
  };
  try {
    WorkerProcess process(0, program, arguments, environment);
    const auto end = std::chrono::steady_clock::now() + kLongestStart;
    while (!process.poll_end() && std::chrono::steady_clock::now() < end) {
      process.relay(Output::kStdout, keep);
      process.relay(Output::kStderr, keep);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    process.drain(keep);
    if (!process.end()) {
      answer.code = -SIGALRM;
      answer.err = fmt::format("did not end within {} s", kLongestStart.count());
    } else {
      answer.code = process.end()->signal != 0 ? -process.end()->signal : process.end()->exit_code;
    }
  } catch (const RuntimeFault& fault) {
    answer.err = fault.what();
  }
  return answer;
}

// A program of the system that is only needed to build.
Part tool(std::string name,
          const std::vector<std::string>& programs,
          const std::string& package,
          int oldest = 0) {
  Part part{std::move(name), "build", PartState::kMissing, "not on PATH",
            "Debian: apt-get install " + package + "; scripts/setup does it"};
  for (const std::string& program : programs) {
    const std::string path = program_on_path(program).string();
    if (path.empty()) {
      continue;
    }
    const Answer answer = ask(path, {oldest > 0 ? "-dumpversion" : "--version"});
    part.seen = path + " " + answer.out;
    part.state = answer.code == 0 ? PartState::kOk : PartState::kBroken;
    if (answer.code != 0) {
      part.seen = fmt::format("{}: {}", path, answer.err);
    } else if (const int version = std::atoi(answer.out.c_str()); version < oldest) {
      part.state = PartState::kBroken;
      part.advice = fmt::format("C++20 needs g++ {} or newer", oldest);
      return part;
    }
    if (part.state == PartState::kOk) {
      part.advice.clear();
    }
    return part;
  }
  return part;
}

Part engine() {
  Part part{"engine", "capture", PartState::kOk, "", ""};
  std::string worker;
  const fs::path expected = worker_path();
  try {
    worker = worker_program("capture");
  } catch (const RuntimeFault& fault) {
    std::error_code error;
    part.state = fs::exists(expected, error) ? PartState::kBroken : PartState::kMissing;
    part.seen = fault.what();
    part.advice =
        "scripts/setup builds it with LibTorch; for Python, scripts/wheel --engine makes a wheel "
        "of it";
    return part;
  }
  const Answer answer = ask(worker, {"--version"});
  if (answer.code == kNotStarted || answer.code < 0) {
    part.state = PartState::kBroken;
    part.seen = fmt::format("{}: {}", worker, answer.err);
    part.advice = fmt::format(
        "install torch {} where the engine was linked with it (shardlens docs troubleshooting)",
        torch_of(worker));
    return part;
  }
  part.seen = fmt::format("{}, for torch {}", worker, torch_of(worker));
  return part;
}

Part driver() {
  Part part{"NVIDIA driver", "gpu", PartState::kMissing, "no NVIDIA driver is loaded",
            "install NVIDIA's driver; without a GPU, use --backend emulated or simulate"};
  const char* const file = "/proc/driver/nvidia/version";
  std::string line;
  if (has_file(file) && InputLines(file, {.most_bytes = 1 << 16}).next(line)) {
    part.state = PartState::kOk;
    part.seen = line;
    part.advice.clear();
  }
  return part;
}

Part gpus() {
  Part part{"GPUs", "gpu", PartState::kMissing, "none", "see NVIDIA driver"};
  const int count = gpu_count();
  if (count == 0) {
    return part;
  }
  part.state = PartState::kOk;
  part.seen = fmt::format("{}", count);
  part.advice.clear();
  for (const char* device : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"}) {
    if (::access(device, R_OK | W_OK) != 0) {
      part.state = PartState::kBroken;
      part.seen = fmt::format("{}, but {}: {}", count, device, std::strerror(errno));
      part.advice =
          "in a container, pass the GPUs to it; otherwise this user needs permission for the "
          "device";
      return part;
    }
  }
  return part;
}

Part cuda_library(bool has_gpu) {
  const fs::path folder = program_folder();
  Part part{"CUDA part of the engine", "gpu", PartState::kMissing, "libshardlens_cuda.so is absent",
            "build the engine with a torch that has CUDA, as scripts/setup does"};
  for (const fs::path& file :
       {folder / "libshardlens_cuda.so",
        (folder / "../lib/shardlens/libshardlens_cuda.so").lexically_normal()}) {
    std::error_code error;
    if (fs::exists(file, error)) {
      part.state = PartState::kOk;
      part.seen = file.string() + (has_gpu ? "" : ", not tried: no GPU");
      part.advice.clear();
      break;
    }
  }
  return part;
}

Part app() {
  Part part{"app", "app", PartState::kMissing,
            "shardlens-gui is neither next to this program nor on PATH",
            "scripts/setup --gui builds it (Debian: qt6-base-dev qt6-svg-dev), or install the "
            "package shardlens-gui; 'shardlens report' writes a page for a browser"};
  const std::string program = program_beside_or_on_path("shardlens-gui").string();
  if (program.empty()) {
    return part;
  }
  const Answer answer = ask(program, {"--help"}, {"QT_QPA_PLATFORM=offscreen"});
  part.seen = answer.code == 0 ? program : fmt::format("{}: {}", program, answer.err);
  part.state = answer.code == 0 ? PartState::kOk : PartState::kBroken;
  part.advice = answer.code == 0 ? "" : "install Qt 6 (Debian: libqt6widgets6 libqt6svg6)";
  return part;
}

Part display() {
  for (const char* name : {"WAYLAND_DISPLAY", "DISPLAY"}) {
    if (const std::string value = environment_variable(name); !value.empty()) {
      return {"display", "app", PartState::kOk, std::string(name) + "=" + value, ""};
    }
  }
  return {"display", "app", PartState::kMissing, "neither DISPLAY nor WAYLAND_DISPLAY is set",
          "without a display, use 'shardlens report', or 'shardlens gui --export-png'"};
}

// Whether this user can make files in the directory.
Part writable(std::string name, std::string need, const fs::path& directory, std::string advice) {
  Part part{std::move(name), std::move(need), PartState::kOk, directory.string(), ""};
  try {
    (void)OutputFile::temporary(OutputFolder(directory), "shardlens-doctor");
  } catch (const WriteFault& fault) {
    part.state = PartState::kBroken;
    part.seen = fmt::format("{}: {}", directory.string(), fault.reason());
    part.advice = std::move(advice);
    return part;
  }
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  constexpr uintmax_t kLittle = uintmax_t{1} << 30U;
  if (!error) {
    part.seen += fmt::format(", {:.1f} GiB free", static_cast<double>(space.available) / kLittle);
  }
  return part;
}

// Ranks of one node meet over it.
Part loopback() {
  Part part{"127.0.0.1", "capture", PartState::kOk, "a socket can listen", ""};
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = socket >= 0 &&
                       ::bind(socket, reinterpret_cast<const sockaddr*>(&address),
                              sizeof(address)) == 0 &&  // NOLINT
                       ::listen(socket, 1) == 0;
  if (!listens) {
    part.state = PartState::kBroken;
    part.seen = fmt::format("a socket cannot listen: {}", std::strerror(errno));
    part.advice = "bring the interface lo up (ip link set lo up); --backend emulated needs none";
  }
  if (socket >= 0) {
    ::close(socket);
  }
  return part;
}

Part descriptors() {
  constexpr rlim_t kFew = 256;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Part part{
      "open files", "capture", PartState::kOk,
      limit.rlim_cur == RLIM_INFINITY ? "no limit" : fmt::format("at most {}", limit.rlim_cur), ""};
  if (limit.rlim_cur < kFew) {
    part.state = PartState::kBroken;
    part.advice = fmt::format("ulimit -n {}", 4 * kFew);
  }
  return part;
}

}  // namespace

std::string_view name_of(PartState state) {
  constexpr std::array<std::string_view, 3> kNames{"ok", "missing", "broken"};
  return kNames.at(static_cast<size_t>(state));
}

const std::vector<std::string>& needs() {
  static const std::vector<std::string> kNeeds{"build", "capture", "gpu", "app"};
  return kNeeds;
}

std::vector<Part> inspect_installation() {
  std::error_code error;
  const fs::path temporary =
      environment_variable("TMPDIR").empty() ? "/tmp" : environment_variable("TMPDIR");
  std::vector<Part> parts;
  parts.push_back(writable("temporary files", "", temporary,
                           "set TMPDIR to a directory that this user can write to"));
  parts.push_back(
      writable("current directory", "", fs::current_path(error),
               "change to a directory that this user can write to, or name one with --out"));
  parts.push_back(engine());
  parts.push_back(loopback());
  parts.push_back(descriptors());
  parts.push_back(driver());
  parts.push_back(gpus());
  parts.push_back(cuda_library(gpu_count() > 0));
  parts.push_back(app());
  parts.push_back(display());
  constexpr int kOldestCompiler = 12;
  parts.push_back(tool("compiler", {"c++", "g++"}, "g++", kOldestCompiler));
  parts.push_back(tool("CMake", {"cmake"}, "cmake"));
  parts.push_back(tool("Ninja", {"ninja"}, "ninja-build"));
  return parts;
}

}  // namespace shardlens::cli
