#include "profiler/trace/kineto/foreign_files.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardlens::trace {
namespace {

using namespace std::string_view_literals;
using By = ForeignKind::By;

constexpr std::string_view kExport =
    "torch.profiler's export_chrome_trace() writes what Shardlens reads";
constexpr std::string_view kUnpack = "unpack it first";

// What kinds look like is in their specifications, or in the programs that write them. Marks within
// a row's bytes come before marks of names, because a name says less.
constexpr ForeignKind kForeignKinds[] = {
    // Archives and compressed files; gzip and zstd are inflated before.
    {By::kBytes, 0, "PK\x03\x04"sv, "data.pkl", "a checkpoint of torch.save()",
     "torch.load() reads it"},
    {By::kBytes, 0, "PK\x03\x04"sv, ".npy", "an archive of NumPy arrays (.npz)",
     "numpy.load() reads it"},
    {By::kBytes, 0, "PK\x03\x04"sv, "[Content_Types].xml", "an Office document", ""},
    {By::kBytes, 0, "PK\x03\x04\x2d"sv, "", "a ZIP archive (zip64)", kUnpack},
    {By::kBytes, 0, "PK\x03\x04"sv, "", "a ZIP archive", kUnpack},
    {By::kBytes, 0, "PK\x05\x06"sv, "", "an empty ZIP archive", ""},
    {By::kBytes, 257, "ustar"sv, "", "a tar archive", kUnpack},
    {By::kBytes, 0, "BZh"sv, "", "data compressed with bzip2", "bunzip2 inflates it"},
    {By::kBytes, 0,
     "\xFD"
     "7zXZ\0"sv,
     "", "data compressed with xz", "unxz inflates it"},
    {By::kBytes, 0, "\x04\x22\x4D\x18"sv, "", "data compressed with lz4", "unlz4 inflates it"},
    {By::kBytes, 0, "LZIP"sv, "", "data compressed with lzip", "lzip -d inflates it"},
    {By::kBytes, 0, "\x1F\x9D"sv, "", "data compressed with compress", "uncompress inflates it"},
    {By::kBytes, 0, "\xFF\x06\0\0sNaPpY"sv, "", "data compressed with snappy",
     "snzip -d inflates it"},
    {By::kBytes, 0, "7z\xBC\xAF\x27\x1C"sv, "", "a 7z archive", kUnpack},
    {By::kBytes, 0, "Rar!\x1A\x07"sv, "", "a RAR archive", kUnpack},
    // PyTorch and machine learning.
    {By::kBytes, 0,
     "\x80\x02\x8A\x0Al\xFC\x9C"
     "F\xF9 j\xA8P\x19"sv,
     "", "a checkpoint of torch.save() (before PyTorch 1.6)", "torch.load() reads it"},
    {By::kBytes, 0, "\x80"sv, "segments", "a memory snapshot of PyTorch",
     "pytorch.org/memory_viz shows it"},
    {By::kBytes, 0, "\x80\x02"sv, "", "a pickled Python object", kExport},
    {By::kBytes, 0, "\x80\x03"sv, "", "a pickled Python object", kExport},
    {By::kBytes, 0, "\x80\x04"sv, "", "a pickled Python object", kExport},
    {By::kBytes, 0, "\x80\x05"sv, "", "a pickled Python object", kExport},
    {By::kBytes, 4, "\0\0\0\0{\""sv, "", "a safetensors file of weights",
     "`shardlens simulate --model` takes a model's config.json"},
    {By::kBytes, 0, "GGUF"sv, "", "a GGUF file of weights", "llama.cpp reads it"},
    {By::kBytes, 4, "TFL3"sv, "", "a TensorFlow Lite model", ""},
    {By::kBytes, 0, "\x93NUMPY"sv, "", "a NumPy array", "numpy.load() reads it"},
    {By::kName, 0, ".onnx", "", "an ONNX model", "onnx.load() reads it"},
    {By::kName, 0, ".et", "", "an execution trace of Chakra",
     "the same step's trace of torch.profiler is what Shardlens reads"},
    {By::kKeys, 0, "schema", "nodes", "an execution trace of PyTorch or Chakra",
     "the same step's trace of torch.profiler is what Shardlens reads"},
    {By::kKeys, 0, "weight_map", "", "an index of safetensors files", ""},
    {By::kKeys, 0, "model_type", "", "a model's config.json",
     "`shardlens simulate --model` takes it"},
    {By::kKeys, 0, "architectures", "", "a model's config.json",
     "`shardlens simulate --model` takes it"},
    {By::kKeys, 0, "added_tokens", "", "a tokenizer of Hugging Face", ""},
    {By::kKeys, 0, "device_traces", "", "a memory snapshot of PyTorch",
     "pytorch.org/memory_viz shows it"},
    // Profilers.
    {By::kName, 0, ".nsys-rep", "", "a report of Nsight Systems",
     "`nsys export --type sqlite` makes a file that Shardlens reads"},
    {By::kName, 0, ".qdrep", "", "a report of Nsight Systems (before 2021.4)",
     "`nsys export --type sqlite` makes a file that Shardlens reads"},
    {By::kName, 0, ".qdstrm", "", "an unfinished report of Nsight Systems",
     "nsys-ui opens it; Shardlens reads traces of torch.profiler of the same program"},
    {By::kName, 0, ".ncu-rep", "", "a report of Nsight Compute", "ncu-ui opens it"},
    {By::kBytes, 0, "SQLite format 3\0"sv, "", "an SQLite database, as rocprofv3 writes",
     "sqlite3 reads it; analyze and report read those of `nsys export --type sqlite`"},
    {By::kName, 0, ".xplane.pb", "", "a profile of XLA (xplane.pb)",
     "TensorBoard and XProf open it"},
    {By::kName, 0, ".pftrace", "", "a binary trace of Perfetto",
     "ui.perfetto.dev opens it, and traceconv converts it to JSON"},
    {By::kName, 0, ".perfetto-trace", "", "a binary trace of Perfetto",
     "ui.perfetto.dev opens it, and traceconv converts it to JSON"},
    {By::kName, 0, ".pb.gz", "", "a profile of pprof", "`pprof` reads it"},
    {By::kName, 0, ".pprof", "", "a profile of pprof", "`pprof` reads it"},
    {By::kBytes, 0, "PERFILE2"sv, "", "a recording of Linux perf (perf.data)",
     "`perf report` reads it"},
    {By::kBytes, 0, "tr\xFDP"sv, "", "a recording of Tracy", "Tracy's profiler opens it"},
    {By::kBytes, 0, "# callgrind format"sv, "", "a profile of Callgrind", "KCachegrind opens it"},
    {By::kBytes, 0, "/* CTF 1."sv, "", "metadata of a Common Trace Format trace",
     "babeltrace2 reads it"},
    {By::kName, 0, ".rpd", "", "a database of RPD (rocmProfileData)", "rpd2tracing.py converts it"},
    {By::kKeys, 0, "rocprofiler-sdk-tool", "", "the JSON of rocprofv3",
     "rocprofv3 --output-format pftrace writes what ui.perfetto.dev opens"},
    {By::kKeys, 0, "$schema", "profiles", "a profile of speedscope, as py-spy writes",
     "speedscope.app opens it"},
    {By::kKeys, 0, "samples", "timeDeltas", "a CPU profile of Chrome or Node.js",
     "Chrome's DevTools open it"},
    {By::kKeys, 0, "snapshot", "nodes", "a heap snapshot of V8", "Chrome's DevTools open it"},
    {By::kKeys, 0, "libs", "threads", "a profile of Firefox", "profiler.firefox.com opens it"},
    {By::kKeys, 0, "resourceSpans", "", "spans of OpenTelemetry", "Jaeger shows them"},
    // Tables and data.
    {By::kBytes, 0, "PAR1"sv, "", "a Parquet table", "pandas.read_parquet() reads it"},
    {By::kBytes, 0, "ARROW1"sv, "", "an Arrow table", "pyarrow reads it"},
    {By::kBytes, 0, "ORC"sv, "", "an ORC table", "pyarrow reads it"},
    {By::kBytes, 0, "Obj\x01"sv, "", "an Avro file", ""},
    {By::kBytes, 0, "\x89HDF\r\n\x1A\n"sv, "", "an HDF5 file", "h5py reads it"},
    {By::kName, 0, ".csv", "", "a table in CSV, as Holistic Trace Analysis and rocprof write",
     kExport},
    {By::kName, 0, ".tsv", "", "a table in TSV", kExport},
    {By::kKeys, 0, "cells", "nbformat", "a Jupyter notebook", ""},
    // Programs, documents, pictures, text.
    {By::kBytes, 0,
     "\x7F"
     "ELF"sv,
     "", "a program or library of Linux (ELF)", ""},
    {By::kBytes, 0, "MZ"sv, "", "a program of Windows", ""},
    {By::kBytes, 0, "\xCF\xFA\xED\xFE"sv, "", "a program of macOS (Mach-O)", ""},
    {By::kBytes, 0, "\xCA\xFE\xBA\xBE"sv, "", "a Java class or a program of macOS", ""},
    {By::kBytes, 0, "#!"sv, "", "a script", ""},
    {By::kBytes, 0, "\x89PNG\r\n\x1A\n"sv, "", "a PNG image", ""},
    {By::kBytes, 0, "\xFF\xD8\xFF"sv, "", "a JPEG image", ""},
    {By::kBytes, 0, "GIF8"sv, "", "a GIF image", ""},
    {By::kBytes, 0, "%PDF-"sv, "", "a PDF document", ""},
    {By::kBytes, 0, "<svg"sv, "", "an SVG image, perhaps a flame graph", "a browser shows it"},
    {By::kBytes, 0, "<?xml"sv, "<svg", "an SVG image, perhaps a flame graph", "a browser shows it"},
    {By::kBytes, 0, "<?xml"sv, "", "an XML document", ""},
    {By::kBytes, 0, "<!DOCTYPE html"sv, "", "an HTML page",
     "if it was downloaded, the server answered with a page instead of the file"},
    {By::kBytes, 0, "<!doctype html"sv, "", "an HTML page",
     "if it was downloaded, the server answered with a page instead of the file"},
    {By::kBytes, 0, "<html"sv, "", "an HTML page",
     "if it was downloaded, the server answered with a page instead of the file"},
    {By::kBytes, 0, "version https://git-lfs.github.com/"sv, "", "a pointer of Git LFS",
     "`git lfs pull` fetches the file"},
    {By::kBytes, 0, "\xFF\xFE"sv, "", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"},
    {By::kBytes, 0, "\xFE\xFF"sv, "", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"},
    {By::kBytes, 0, "---\n"sv, "", "a YAML document", ""},
    {By::kName, 0, ".yaml", "", "a YAML document", ""},
    {By::kName, 0, ".yml", "", "a YAML document", ""},
    {By::kName, 0, ".toml", "", "a TOML document", ""},
    {By::kName, 0, ".py", "", "a Python program",
     "`shardlens.record()` in the program writes what Shardlens reads"},
};

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() > end.size() && name.ends_with(end);
}

bool has(const std::vector<std::string>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Whether the content may be an object or a list.
bool looks_like_json(std::string_view head) {
  if (head.starts_with("\xEF\xBB\xBF")) {
    head.remove_prefix(3);
  }
  const size_t at = head.find_first_not_of(" \t\r\n");
  return at != std::string_view::npos && (head[at] == '{' || head[at] == '[');
}

}  // namespace

std::span<const ForeignKind> foreign_kinds() {
  return kForeignKinds;
}

const ForeignKind* foreign_kind(std::string_view name, std::string_view head) {
  head = head.substr(0, kHeadBytes);
  if (looks_like_json(head)) {
    return nullptr;
  }
  for (const ForeignKind& kind : kForeignKinds) {
    const bool bytes = kind.by == By::kBytes && head.size() > kind.offset &&
                       head.substr(kind.offset).starts_with(kind.mark) &&
                       head.find(kind.also) != std::string_view::npos;
    if (bytes || (kind.by == By::kName && ends_with(name, kind.mark))) {
      return &kind;
    }
  }
  return nullptr;
}

const ForeignKind* foreign_json(const std::vector<std::string>& keys) {
  for (const ForeignKind& kind : kForeignKinds) {
    if (kind.by == By::kKeys && has(keys, kind.mark) &&
        (kind.also.empty() || has(keys, kind.also))) {
      return &kind;
    }
  }
  return nullptr;
}

std::string words_of(const ForeignKind& kind) {
  return fmt::format("not a trace, but {}{}{}", kind.what, kind.help.empty() ? "" : "; ",
                     kind.help);
}

}  // namespace shardlens::trace
