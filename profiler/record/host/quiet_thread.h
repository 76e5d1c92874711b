#pragma once

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace shardlens::record {

// Starts a thread that takes no signals, so that the program's handlers run on its own threads.
template <typename Body>
std::thread thread_without_signals(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace shardlens::record
