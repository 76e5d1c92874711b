# Settings of all targets of the project: language level, warnings, hardening, fast linking; and one helper function per kind of target. As a
# subdirectory of another project they hold for the targets of this one alone.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(SHARDLENS_CCACHE ccache)
if(SHARDLENS_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHARDLENS_CCACHE})
endif()
find_program(SHARDLENS_MOLD mold)
if(SHARDLENS_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# What the linker writes into programs is read-only before main. tests/tools/check_hardening.py checks this and how they were compiled.
add_link_options(-Wl,-z,relro,-z,now)

# For those who use the libraries: the language level and where the headers are, which include each other as "core/…". Users include them as
# <shardlens/core/…>, here through links to the folders; shardlens_install_headers() writes the installed ones so too.
add_library(shardlens_headers INTERFACE)
target_compile_features(shardlens_headers INTERFACE cxx_std_20)
target_include_directories(shardlens_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                       $<INSTALL_INTERFACE:include>)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/shardlens)
foreach(folder core profiler sim)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${PROJECT_BINARY_DIR}/include/shardlens/${folder} SYMBOLIC)
endforeach()

# For the targets of this project.
add_library(shardlens_options INTERFACE)
target_link_libraries(shardlens_options INTERFACE shardlens_headers)
target_compile_options(shardlens_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                                   -Werror=switch -Werror=return-type)
# GCC frees memory of the compiler when it has 128 MB. With the sources of a library in one file it would do that often: collecting later takes an
# eighth less time and two fifths more memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(shardlens_options INTERFACE --param=ggc-min-heapsize=1048576)
endif()
# No path of this machine in programs, so that a build in another folder has the same bytes (scripts/check_reproducible).
target_compile_options(shardlens_options INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${PROJECT_BINARY_DIR}/=build/)
# On ARM64, products and sums would be rounded once where x86-64 rounds them twice, and the same plan would have another simulated time.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  target_compile_options(shardlens_options INTERFACE -ffp-contract=off)
endif()
if(SHARDLENS_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "SHARDLENS_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  set(SHARDLENS_SANITIZE address,undefined)
  target_compile_options(shardlens_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(SHARDLENS_SANITIZE)
  # Undefined behaviour ends the program: a test would pass otherwise. Left out, after -fsanitize, which turns all on: null and object-size, which
  # AddressSanitizer finds too; alignment; vptr, which opens a file for each check.
  target_compile_options(shardlens_options INTERFACE -fsanitize=${SHARDLENS_SANITIZE} -fno-sanitize=null,vptr,alignment,object-size
                                                     -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(shardlens_options INTERFACE -fsanitize=${SHARDLENS_SANITIZE})
else()
  # The sanitizers check more of the same. _FORTIFY_SOURCE works only in optimized code.
  target_compile_options(shardlens_options INTERFACE -fstack-protector-strong -fstack-clash-protection
                                                     $<$<CONFIG:Release,RelWithDebInfo>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()
include(Precompiled)
# What links a library of this project, in this project, is compiled like it; a host's targets are not.
set(SHARDLENS_OPTIONS_SCOPE PRIVATE)
if(PROJECT_IS_TOP_LEVEL)
  set(SHARDLENS_OPTIONS_SCOPE PUBLIC)
endif()

# shardlens_folders(OUT BUILT always|engine|gui|part [TESTED])      the folders of cmake/folders.txt that are built then, in its order;
# TESTED: only those that tests/ has a folder for
set(SHARDLENS_FOLDER_LIST ${CMAKE_CURRENT_LIST_DIR}/folders.txt)
function(shardlens_folders out)
  cmake_parse_arguments(ARG "TESTED" "BUILT" "" ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${SHARDLENS_FOLDER_LIST})
  file(STRINGS ${SHARDLENS_FOLDER_LIST} rows REGEX "^[^#]")
  set(found)
  foreach(row IN LISTS rows)
    if(NOT row MATCHES "^([^ ]+) +(always|engine|gui|part) +(yes|no)( |$)")
      message(FATAL_ERROR "${SHARDLENS_FOLDER_LIST}: expected 'folder built tests …', found '${row}'")
    endif()
    if(CMAKE_MATCH_2 STREQUAL ARG_BUILT AND (NOT ARG_TESTED OR CMAKE_MATCH_3 STREQUAL yes))
      list(APPEND found ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# shardlens_library(NAME [OPTIMIZE 1|g] [SOURCES a.cpp ...] [LINKS shardlens_base ...])      static library of one folder; without SOURCES of every
# .cpp in it. OPTIMIZE: what a release build does with sources in which no run spends its time, -Og, or -O1 where a search calls them: -O1 takes a
# quarter longer to compile, -O3 three quarters.
function(shardlens_library name)
  cmake_parse_arguments(ARG "" "OPTIMIZE" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  shardlens_links_torch(with_torch ${ARG_LINKS})
  if(with_torch AND CMAKE_UNITY_BUILD AND PROJECT_IS_TOP_LEVEL)
    shardlens_join_engine(${name} SOURCES ${ARG_SOURCES} LINKS ${ARG_LINKS})
    return()
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shardlens_headers ${ARG_LINKS} ${SHARDLENS_OPTIONS_SCOPE} $<BUILD_INTERFACE:shardlens_options>)
  if(ARG_OPTIMIZE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${ARG_OPTIMIZE}>)
  endif()
  shardlens_precompile(${name})
endfunction()

# shardlens_join_engine(NAME SOURCES a.cpp ... LINKS ...)      in a unity build, the sources of all libraries with LibTorch are compiled as one,
# shardlens_engine: reading its headers takes more than half of the time of each. NAME links it, and what it needs.
function(shardlens_join_engine name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  if(NOT TARGET shardlens_engine)
    add_library(shardlens_engine STATIC)
    target_link_libraries(shardlens_engine PUBLIC shardlens_headers shardlens_torch_cpu $<BUILD_INTERFACE:shardlens_options>)
    shardlens_precompile(shardlens_engine)
  endif()
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/]")
  target_sources(shardlens_engine PRIVATE ${ARG_SOURCES})
  foreach(link IN LISTS ARG_LINKS)
    shardlens_links_torch(with_torch ${link})
    if(NOT with_torch)
      target_link_libraries(shardlens_engine PUBLIC ${link})
    endif()
  endforeach()
  add_library(${name} INTERFACE)
  target_link_libraries(${name} INTERFACE shardlens_engine ${ARG_LINKS})
  set_target_properties(${name} PROPERTIES SHARDLENS_USES_TORCH ON)
endfunction()

# shardlens_inlines(NAME)      for libraries in which a search spends its time: functions may be inlined into others of the library, although it
# is position-independent code, where by default another library could replace them when a program starts. Nothing does.
function(shardlens_inlines name)
  target_compile_options(${name} PRIVATE -fno-semantic-interposition)
endfunction()

# shardlens_test(NAME SOURCES a_test.cpp ... [LINKS ...] [ENGINE [BESIDE]] [SERIAL] [LABELS ...] [TIMEOUT seconds] [COST seconds])
# One executable. Torch-free executables register each TEST with CTest; ENGINE executables are one CTest entry each, because every process
# needs about a second to load LibTorch. With sanitizers, where a process takes a tenth of a second to start, torch-free executables are both: the
# preset dev-asan runs each TEST by itself, dev-asan-programs each executable once, those with the largest COST first. ENGINE tests and SERIAL tests
# (with several processes, or that measure times) never run concurrently with other tests; those that are BESIDE only wait for their processes, and do.
function(shardlens_test name)
  cmake_parse_arguments(ARG "ENGINE;BESIDE;SERIAL" "TIMEOUT;COST" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(SHARDLENS_SANITIZE)  # a test of 9 s took 74 s with -Og on a slow machine
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} shardlens_options fmt::fmt GTest::gtest GTest::gmock GTest::gtest_main)
  # What a test does itself is not worth the compile time of -O3, nor of -O1, which takes a third longer to compile than -Og.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  target_compile_definitions(${name} PRIVATE SHARDLENS_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                             SHARDLENS_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  shardlens_precompile(${name})
  if(ARG_ENGINE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "engine_test;${ARG_LABELS}")
    if(NOT ARG_BESIDE)
      set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    endif()
    if(NOT TARGET engine_tests)  # with what they start: scripts/engine_torch builds them
      add_custom_target(engine_tests DEPENDS shardlens shardlens-worker)
    endif()
    add_dependencies(engine_tests ${name})
  else()
    # Only properties with a value: for an empty one, CMake would use the next property's name as its value.
    set(properties TIMEOUT ${ARG_TIMEOUT})
    if(ARG_LABELS)
      list(APPEND properties LABELS ${ARG_LABELS})
    endif()
    if(ARG_SERIAL)
      list(APPEND properties RUN_SERIAL TRUE)
    endif()
    if(SHARDLENS_SANITIZE MATCHES address)
      list(APPEND properties ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
    endif()
    if(SHARDLENS_SANITIZE)
      add_test(NAME ${name} COMMAND ${name})
      set_tests_properties(${name} PROPERTIES ${properties} TIMEOUT 1800 LABELS program)
      if(ARG_COST)
        set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
      endif()
    endif()
    # ctest asks each program for its tests, and runs none if one does not answer in time. Right after a build a program is not in the page cache,
    # and the default of 5 s was too short for one with CUDA's libraries.
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES PROPERTIES ${properties})
  endif()
endfunction()
