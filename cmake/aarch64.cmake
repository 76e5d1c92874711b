# Toolchain file: builds for ARM64 on another machine, with Debian's g++-aarch64-linux-gnu. scripts/wheel --aarch64 uses it.
#   SHARDLENS_SYSROOT  a folder with Debian's libraries for arm64, such as mmdebstrap extracts

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARDLENS_SYSROOT)
set(CMAKE_SYSROOT ${SHARDLENS_SYSROOT})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${SHARDLENS_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${SHARDLENS_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${SHARDLENS_SYSROOT}/usr/share/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${SHARDLENS_SYSROOT})
