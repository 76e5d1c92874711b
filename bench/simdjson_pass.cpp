// A minimal pass for comparison with the reader: simdjson's on-demand interface over a whole file.
// It reads the members of an Event (ph, cat, name, pid, tid, ts, dur), but not its args; it keeps
// no names and builds no table. `simdjson_pass FILE` prints seconds including loading the file, the
// number of events, and seconds without loading.
//
// Compiled for the machine that it runs on (-O3 -march=native), so that simdjson's inlined code is
// as fast as possible. Keys are visited in the order of the file, as simdjson recommends for
// objects whose members may be in any order.
#include <chrono>
#include <cstdint>
#include <cstdio>

#include <simdjson.h>

namespace od = simdjson::ondemand;

namespace {

struct Sum {
  size_t events = 0, text = 0;
  double time = 0;
  int64_t ids = 0;
};

void add(Sum& sum, od::object event) {
  ++sum.events;
  for (od::field field : event) {
    const od::raw_json_string key = field.key();
    od::value value = field.value();
    if (key == "ts" || key == "dur") {
      sum.time += value.get_double();
    } else if (key == "name" || key == "cat" || key == "ph") {
      sum.text += std::string_view(value.get_string()).size();
    } else if (key == "pid" || key == "tid") {
      sum.ids += value.get_int64();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: simdjson_pass FILE\n", stderr);
    return 2;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    const simdjson::padded_string text = simdjson::padded_string::load(argv[1]);
    const auto loaded = std::chrono::steady_clock::now();
    od::parser parser;
    od::document document = parser.iterate(text);
    Sum sum;
    for (od::value event : document["traceEvents"].get_array()) {
      add(sum, event.get_object());
    }
    const auto end = std::chrono::steady_clock::now();
    const std::chrono::duration<double> seconds = end - begin, parsing = end - loaded;
    std::printf("%.6f %zu %.6f\n", seconds.count(), sum.events, parsing.count());
    std::fprintf(stderr, "%s %zu %g %lld\n", simdjson::get_active_implementation()->name().c_str(),
                 sum.text, sum.time, static_cast<long long>(sum.ids));
  } catch (const simdjson::simdjson_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}
