#include "profiler/trace/kineto/foreign_files.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/run.h"

namespace shardlens::trace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using namespace std::string_view_literals;

struct ForeignFile {
  std::string name, content;
  const char* what;
};

std::string zip_with(std::string_view entry, char version = 20) {
  return std::string("PK\x03\x04") + version + std::string(25, '\0') + std::string(entry) + "data";
}

std::string tar() {
  return "rank0.json" + std::string(247, '\0') + "ustar" + std::string(250, '\0');
}

// Beginnings of real files of each kind, as their specifications and the programs that write them
// have them.
std::vector<ForeignFile> foreign_files() {
  const std::string nul(1, '\0');
  const auto bytes = [](std::string_view text) { return std::string(text); };
  return {
      {"model.pt", zip_with("archive/data.pkl"), "a checkpoint of torch.save()"},
      {"arrays.npz", zip_with("weight.npy"), "an archive of NumPy arrays"},
      {"notes.docx", zip_with("[Content_Types].xml"), "an Office document"},
      {"big.zip", zip_with("trace.json", 45), "a ZIP archive (zip64)"},
      {"traces.zip", zip_with("trace.json"), "a ZIP archive; unpack"},
      {"none.zip", bytes("PK\x05\x06"sv) + std::string(18, '\0'), "an empty ZIP archive"},
      {"traces.tar", tar(), "a tar archive"},
      {"traces.tar.gz", gzip(tar()), "a tar archive"},
      {"trace.json.bz2", "BZh91AY&SY", "bzip2"},
      {"trace.json.xz",
       bytes("\xFD"
             "7zXZ\0\0\x04"sv),
       "xz"},
      {"trace.json.lz4", bytes("\x04\x22\x4D\x18\x64\x40"sv), "lz4"},
      {"trace.json.lz", bytes("LZIP\x01"sv), "lzip"},
      {"trace.json.Z", bytes("\x1F\x9D\x90"sv), "with compress"},
      {"trace.json.sz", bytes("\xFF\x06\0\0sNaPpY"sv), "snappy"},
      {"traces.7z", bytes("7z\xBC\xAF\x27\x1C\0\x04"sv), "a 7z archive"},
      {"traces.rar", bytes("Rar!\x1A\x07\x01\0"sv), "a RAR archive"},
      {"old.pt",
       bytes("\x80\x02\x8A\x0Al\xFC\x9C"
             "F\xF9 j\xA8P\x19.\x80\x02M"sv),
       "before PyTorch 1.6"},
      {"snapshot.pickle", bytes("\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94(\x8C\x08segments\x94]"sv),
       "a memory snapshot of PyTorch; pytorch.org/memory_viz"},
      {"any.pkl", bytes("\x80\x05\x95\x10\0\0\0\0\0\0\0]\x94"sv), "a pickled Python object"},
      {"py2.pkl", bytes("\x80\x02]q\0."sv), "a pickled Python object"},
      {"model.safetensors", bytes("\x40\0\0\0\0\0\0\0{\"weight\":"sv), "safetensors"},
      {"model.gguf", bytes("GGUF\x03\0\0\0"sv), "GGUF"},
      {"model.tflite", bytes("\x1C\0\0\0TFL3"sv), "TensorFlow Lite"},
      {"array.npy", bytes("\x93NUMPY\x01\0"sv), "a NumPy array"},
      {"model.onnx", bytes("\x08\x08\x12\x07pytorch"sv), "an ONNX model"},
      {"rank0.et",
       bytes("\x0A\x0D\x0A\x05"
             "0.0.4"sv),
       "an execution trace of Chakra"},
      {"et.json", R"({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []})",
       "an execution trace of PyTorch or Chakra"},
      {"model.safetensors.index.json", R"({"metadata": {}, "weight_map": {}})",
       "an index of safetensors files"},
      {"llama.json", R"({"model_type": "llama", "hidden_size": 8})", "a model's config.json"},
      {"tokenizer.json", R"({"version": "1.0", "added_tokens": []})", "a tokenizer"},
      {"memory.json", R"({"segments": [], "device_traces": []})", "a memory snapshot of PyTorch"},
      {"report.nsys-rep", bytes("\x01\0\0\0nsys"sv),
       "a report of Nsight Systems; `nsys export --type sqlite`"},
      {"report.qdrep", bytes("\x01\0\0\0nsys"sv), "before 2021.4"},
      {"report.qdstrm", bytes("\x01\0\0\0nsys"sv), "an unfinished report"},
      {"kernel.ncu-rep", bytes("NVR\0"sv), "a report of Nsight Compute"},
      {"report.sqlite", bytes("SQLite format 3\0\x10"sv),
       "an SQLite database, as rocprofv3 writes"},
      {"host.xplane.pb", bytes("\x0A\x20\x08\x01\x12"sv), "a profile of XLA"},
      {"trace.pftrace", bytes("\x0A\x07\x08\x01"sv), "a binary trace of Perfetto"},
      {"trace.perfetto-trace", bytes("\x0A\x07\x08\x01"sv), "a binary trace of Perfetto"},
      {"cpu.pb.gz", gzip("\x0A\x04\x08\x01\x10\x02"), "a profile of pprof"},
      {"cpu.pprof", bytes("\x0A\x04\x08\x01"sv), "a profile of pprof"},
      {"perf.data", bytes("PERFILE2h\0"sv), "Linux perf"},
      {"run.tracy", bytes("tr\xFDP\0"sv), "Tracy"},
      {"callgrind.out", "# callgrind format\nversion: 1\n", "Callgrind"},
      {"metadata", "/* CTF 1.8 */\n", "Common Trace Format"},
      {"run.rpd", bytes("\x01\x02"sv), "rocmProfileData"},
      {"results.json", R"({"rocprofiler-sdk-tool": []})", "rocprofv3"},
      {"py-spy.json",
       R"({"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []})",
       "a profile of speedscope, as py-spy writes"},
      {"node.cpuprofile", R"({"nodes": [], "samples": [], "timeDeltas": []})", "a CPU profile"},
      {"heap.heapsnapshot", R"({"snapshot": {}, "nodes": []})", "a heap snapshot"},
      {"firefox.json", R"({"meta": {}, "libs": [], "threads": []})", "a profile of Firefox"},
      {"spans.json", R"({"resourceSpans": []})", "OpenTelemetry"},
      {"table.parquet", bytes("PAR1\x15\x04"sv), "a Parquet table"},
      {"table.arrow", bytes("ARROW1\0\0"sv), "an Arrow table"},
      {"table.orc", "ORC", "an ORC table"},
      {"table.avro", bytes("Obj\x01\x04"sv), "an Avro file"},
      {"data.h5", bytes("\x89HDF\r\n\x1A\n"sv), "an HDF5 file"},
      {"results.csv", "\"Kind\",\"Agent_Id\",\"Kernel_Name\"\n", "a table in CSV"},
      {"results.tsv", "kernel\ttime\n", "a table in TSV"},
      {"notebook.ipynb", R"({"cells": [], "nbformat": 4})", "a Jupyter notebook"},
      {"program",
       bytes("\x7F"
             "ELF\x02\x01"sv),
       "ELF"},
      {"program.exe", bytes("MZ\x90\0"sv), "a program of Windows"},
      {"program.dylib", bytes("\xCF\xFA\xED\xFE\x07"sv), "Mach-O"},
      {"Main.class", bytes("\xCA\xFE\xBA\xBE\0"sv), "a Java class"},
      {"run", "#!/bin/sh\n", "a script"},
      {"a.png", bytes("\x89PNG\r\n\x1A\n"sv), "a PNG image"},
      {"a.jpg", bytes("\xFF\xD8\xFF\xE0"sv), "a JPEG image"},
      {"a.gif", "GIF89a", "a GIF image"},
      {"a.pdf", "%PDF-1.7", "a PDF document"},
      {"flame.svg", "<?xml version=\"1.0\"?>\n<svg>", "an SVG image, perhaps a flame graph"},
      {"flame2.svg", "<svg xmlns=", "an SVG image, perhaps a flame graph"},
      {"a.xml", "<?xml version=\"1.0\"?>\n<suite>", "an XML document"},
      {"rank0.json", "<!DOCTYPE html><html>", "an HTML page; if it was downloaded"},
      {"rank1.json", "<!doctype html>", "an HTML page"},
      {"rank2.json", "<html>", "an HTML page"},
      {"rank3.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
       "a pointer of Git LFS; `git lfs pull`"},
      {"rank4.json", bytes("\xFF\xFE{\0"sv), "text in UTF-16"},
      {"rank5.json", bytes("\xFE\xFF\0{"sv), "text in UTF-16"},
      {"a.yaml", "---\nkey: value\n", "a YAML document"},
      {"b.yaml", "key: value\n", "a YAML document"},
      {"b.yml", "key: value\n", "a YAML document"},
      {"pyproject.toml", "key = 1\n", "a TOML document"},
      {"train.py", "import torch\n", "a Python program"},
  };
}

class ForeignFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("shardlens-foreign-" + std::to_string(::getpid()));
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name, std::ios::binary) << content;
  }
  static std::string message(const fs::path& path) {
    try {
      (void)trace::Run::open(path);
    } catch (const NotATrace& error) {
      return error.what();
    }
    return "";
  }
  fs::path directory_;
};

TEST_F(ForeignFilesTest, EachKindIsNamed) {
  std::set<std::string> named;
  for (const ForeignFile& file : foreign_files()) {
    write(file.name, file.content);
    const std::string found = message(directory_ / file.name);
    EXPECT_THAT(found, HasSubstr(file.name + ": not a trace, but ")) << file.name;
    EXPECT_THAT(found, HasSubstr(file.what)) << file.name;
    for (const ForeignKind& kind : foreign_kinds()) {
      if (found.find(words_of(kind)) != std::string::npos) {
        named.emplace(kind.what);
      }
    }
  }
  for (const ForeignKind& kind : foreign_kinds()) {
    EXPECT_TRUE(named.contains(std::string(kind.what))) << kind.what << " has no file here";
  }
  EXPECT_GE(named.size(), 40U);
}

TEST_F(ForeignFilesTest, JsonOfNoKnownKindSaysWhatItLacks) {
  write("metadata.json", R"({"name": "run"})");
  EXPECT_THAT(message(directory_ / "metadata.json"), HasSubstr("no list \"traceEvents\""));
  write("lines.json", "{\"step\": 1}\n{\"step\": 2}\n");
  EXPECT_THAT(message(directory_ / "lines.json"), HasSubstr("no list \"traceEvents\""));
  write("list.json", R"([{"name": "a"}, {"name": "b"}])");
  EXPECT_THAT(message(directory_ / "list.json"), HasSubstr("none of the list's entries"));
}

constexpr const char* kTrace =
    R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,
        "ts": 0, "dur": 5}]})";

TEST_F(ForeignFilesTest, OneForeignFileDoesNotRefuseADirectory) {
  write("metadata.json", R"({"name": "run"})");
  write("model.json.gz", gzip(R"({"model_type": "llama"})"));
  write("rank0_trace.json", kTrace);
  const trace::Run run = trace::Run::open(directory_);
  EXPECT_EQ(run.traces.size(), 1U);
  ASSERT_EQ(run.diagnostics.size(), 2U);
  EXPECT_THAT(run.diagnostics[0].message, HasSubstr("metadata.json: not a trace"));
  EXPECT_THAT(run.diagnostics[1].message, HasSubstr("model.json.gz: not a trace, but a model's"));
  // What was given by name is refused.
  const std::vector<fs::path> named{directory_ / "rank0_trace.json", directory_ / "metadata.json"};
  EXPECT_THROW((void)trace::Run::open(named), NotATrace);
}

TEST_F(ForeignFilesTest, ADirectoryOfOnlyForeignFilesIsRefused) {
  write("metadata.json", R"({"name": "run"})");
  EXPECT_THAT(message(directory_), HasSubstr("metadata.json: not a trace"));
}

TEST_F(ForeignFilesTest, ADamagedTraceInADirectoryIsRefused) {
  write("rank0.json", kTrace);
  write("rank1.json", std::string(kTrace).substr(0, 60));
  EXPECT_THROW((void)trace::Run::open(directory_), InputError);
}

TEST_F(ForeignFilesTest, ADirectoryWithoutTracesNamesWhatItHas) {
  write("report.nsys-rep", "\x01nsys");
  try {
    (void)trace::Run::open(directory_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("report.nsys-rep is not a trace, but a report of Nsight"));
  }
}

}  // namespace
}  // namespace shardlens::trace
