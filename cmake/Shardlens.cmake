# What every target of the project shares: language level, warnings, fast linking, and one helper per kind of target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(shardlens_options INTERFACE)
target_compile_options(shardlens_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                                   -Werror=switch -Werror=return-type)
target_include_directories(shardlens_options INTERFACE ${PROJECT_SOURCE_DIR})
if(SHARDLENS_SANITIZE)
  target_compile_options(shardlens_options INTERFACE -fsanitize=${SHARDLENS_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(shardlens_options INTERFACE -fsanitize=${SHARDLENS_SANITIZE})
endif()

# shardlens_library(NAME SOURCES a.cpp ... [LINKS shardlens_base ...])      static library of one folder
function(shardlens_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shardlens_options ${ARG_LINKS})
endfunction()

# shardlens_test(NAME SOURCES a_test.cpp ... [LINKS ...] [ENGINE] [SERIAL] [LABELS ...] [TIMEOUT seconds])
# One executable; torch-free ones register each TEST with CTest, ENGINE ones are one CTest entry per executable because
# every process pays about a second to load LibTorch. ENGINE tests, and SERIAL ones (several processes, or times that count), run with
# nothing beside them.
function(shardlens_test name)
  cmake_parse_arguments(ARG "ENGINE;SERIAL" "TIMEOUT" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SHARDLENS_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                             SHARDLENS_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_ENGINE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" RUN_SERIAL TRUE)
  else()
    # Only what is set: an empty value would take the next property's name for its own.
    set(properties TIMEOUT ${ARG_TIMEOUT})
    if(ARG_LABELS)
      list(APPEND properties LABELS ${ARG_LABELS})
    endif()
    if(ARG_SERIAL)
      list(APPEND properties RUN_SERIAL TRUE)
    endif()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES ${properties})
  endif()
endfunction()
