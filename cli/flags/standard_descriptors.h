#pragma once

namespace shardlens::cli {

// Opens /dev/null for each of standard input, output and error that the caller has closed, so that
// no file or pipe of this process gets its number, and messages do not end in that file. To be
// called before anything is opened.
void open_standard_descriptors();

}  // namespace shardlens::cli
