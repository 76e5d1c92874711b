# Headers of other projects, compiled once for all targets: most of the time of a unity build is spent in reading and instantiating them. Only in
# unity builds, because a file that forgets an include compiles with them; the presets compile each file with its own includes. Headers of this
# project are in none, so that an edit compiles what includes it.
# Off by default: ten libraries without LibTorch took as long with it as without, the header included (bench/RESULTS.md).
option(SHARDLENS_PRECOMPILE "Precompile headers of other projects" OFF)
if(NOT PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(SHARDLENS_PRECOMPILE OFF)
endif()
set(precompiled_base <algorithm> <array> <cmath> <filesystem> <functional> <map> <memory> <optional> <set> <span> <string> <string_view> <tuple>
                     <unordered_map> <unordered_set> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
set(precompiled_test <gmock/gmock.h> <gtest/gtest.h> <fstream> <sstream> ${precompiled_base})
set(precompiled_torch <ATen/TensorOperators.h> <ATen/core/TensorBody.h> <ATen/core/grad_mode.h> <ATen/ops/empty.h> <ATen/ops/zeros.h>
                      <torch/csrc/autograd/function.h> <torch/nn/module.h>)
set(SHARDLENS_PRECOMPILED_LINKS fmt::fmt nlohmann_json::nlohmann_json)

# shardlens_links_torch(OUT LIBRARY...)      whether one of them is of LibTorch or needs it
function(shardlens_links_torch out)
  set(${out} OFF PARENT_SCOPE)
  foreach(link IN LISTS ARGN)
    set(with_torch OFF)
    if(TARGET ${link})
      get_target_property(with_torch ${link} SHARDLENS_USES_TORCH)
    endif()
    if(with_torch OR link MATCHES "^shardlens_torch_")
      set(${out} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# shardlens_precompile(NAME)      NAME, whose libraries are linked, uses the header that fits: with LibTorch, for tests, or neither
function(shardlens_precompile name)
  get_target_property(links ${name} LINK_LIBRARIES)
  set(kind base)
  if(links MATCHES "GTest::")
    set(kind test)
  endif()
  shardlens_links_torch(with_torch ${links})
  if(with_torch)
    set(kind torch)
    set_target_properties(${name} PROPERTIES SHARDLENS_USES_TORCH ON)
  endif()
  if(NOT SHARDLENS_PRECOMPILE)
    return()
  endif()
  set(maker shardlens_precompiled_${kind})
  if(NOT TARGET ${maker})
    set(source ${PROJECT_BINARY_DIR}/${maker}.cpp)  # a target has a source; this one is empty
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    add_library(${maker} OBJECT EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${maker} PRIVATE shardlens_options ${SHARDLENS_PRECOMPILED_LINKS} $<$<STREQUAL:${kind},test>:GTest::gmock> $<$<STREQUAL:${kind},torch>:shardlens_torch_cpu>)
    target_precompile_headers(${maker} PRIVATE ${precompiled_${kind}})
    shardlens_uses_precompiled(${maker})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${maker})
  shardlens_uses_precompiled(${name})
endfunction()

# Programs are compiled as position-independent as libraries, and all with -pthread, or they could not use the same header. ccache has to be told
# that only options and contents matter.
function(shardlens_uses_precompiled name)
  target_compile_options(${name} PRIVATE -fPIC -pthread -fpch-preprocess)
  if(SHARDLENS_CCACHE)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "env;CCACHE_SLOPPINESS=pch_defines,time_macros;${SHARDLENS_CCACHE}")
  endif()
endfunction()
