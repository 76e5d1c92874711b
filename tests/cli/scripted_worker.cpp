// A worker for supervisor tests: performs the action given for its RANK, e.g. `0=sleep 1=kill`.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "profiler/record/host/now_page.h"
#include "profiler/record/host/rank_now.h"

namespace {

[[noreturn]] void sleep_long() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
}

// Creates this rank's file next to the rendezvous store, then waits for the files of all ranks.
void meet_others(int rank, int size) {
  const std::filesystem::path directory =
      std::filesystem::path(std::getenv("SHARDLENS_RENDEZVOUS")).parent_path();
  std::ofstream(directory / ("here" + std::to_string(rank))) << "x";
  for (int peer = 0; peer < size; ++peer) {
    while (!std::filesystem::exists(directory / ("here" + std::to_string(peer)))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void print_environment() {
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "SHARDLENS_TEST_KEPT"}) {
    const char* value = std::getenv(name);
    std::printf("%s=%s\n", name, value == nullptr ? "-" : value);
  }
  const std::filesystem::path store = std::getenv("SHARDLENS_RENDEZVOUS");
  const auto mode = std::filesystem::status(store.parent_path()).permissions();
  std::printf("store=%s mode=%o\n", store.c_str(), static_cast<unsigned>(mode));
}

int act(const std::string& what, int rank) {
  if (what.starts_with("exit:")) {
    return std::atoi(what.c_str() + 5);
  }
  if (what.starts_with("late_exit:")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return std::atoi(what.c_str() + 10);
  }
  if (what.starts_with("now:")) {  // writes a page, then is killed
    shardlens::record::NowPage page(shardlens::record::now_path(what.substr(4), rank));
    page.units(std::vector<std::string>{"", "layers.0"});
    page.step(4, true);
    page.hook(shardlens::Hook::kPreForward, 1);
    ::raise(SIGKILL);
  }
  if (what == "sleep") {
    sleep_long();
  } else if (what == "stubborn") {
    ::signal(SIGTERM, SIG_IGN);
    std::printf("ready\n");
    std::fflush(stdout);
    sleep_long();
  } else if (what == "late_stop") {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("my number %d\n", static_cast<int>(::getpid()));
    std::fflush(stdout);
    ::raise(SIGSTOP);
  } else if (what == "kill") {
    ::raise(SIGKILL);
  } else if (what == "crash") {
    ::signal(SIGSEGV, SIG_DFL);  // AddressSanitizer would catch it and exit instead
    ::raise(SIGSEGV);
  } else if (what == "environment") {
    print_environment();
  } else if (what == "print") {
    std::printf("one\ntwo %d\nno newline", rank);
    std::fflush(stdout);
    std::fprintf(stderr, "plain\n[rank %d] prefixed\n", rank);
  } else if (what == "flood") {
    for (int i = 0; i < 200000; ++i) {
      std::printf("line %d of a long output that fills every pipe\n", i);
    }
  } else if (what == "orphan") {  // leaves a child that keeps the pipes open
    if (::fork() == 0) {
      std::printf("orphan %d\n", static_cast<int>(::getpid()));
      std::fflush(stdout);
      sleep_long();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = std::atoi(std::getenv("RANK"));
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  meet_others(rank, size);
  const std::string mine = std::to_string(rank) + "=";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with(mine)) {
      return act(argument.substr(mine.size()), rank);
    }
  }
  return 0;
}
