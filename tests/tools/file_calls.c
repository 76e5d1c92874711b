/* Preloaded into a program: logs its calls that create, replace or remove files and directories, and lets one of its calls that write fail.
 *
 * FILE_CALLS_LOG=FILE   a line per call: process, call, what, path, then (renames, links) the other path. `what`: of opens the flags that matter
 *                       and whether the name was there before; of other calls whether they succeeded.
 * FILE_CALLS_FAULT=N:K  the N-th counted call of a process, from 0 on, does K: kill (SIGKILL before the call), nospace (ENOSPC), error (EIO), or
 *                       short (a write of half the bytes; other calls succeed).
 * FILE_CALLS_COUNT=FILE the number of counted calls, written at exit.
 * Counted are writes to regular files, flushes, and all that is logged. Removals can only be killed.
 *
 * The names of the functions are given to the assembler, so that they do not meet the declarations of the headers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define HOOK(type, name, ...) type hook_##name(__VA_ARGS__) __asm__(#name); type hook_##name(__VA_ARGS__)
#define REAL(name) ((__typeof__(&hook_##name))real(#name))

static atomic_long counted;

static void* real(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) {
    abort();
  }
  return found;
}

static void append(const char* variable, const char* line, size_t size) {
  const char* file = getenv(variable);
  if (file == NULL) {
    return;
  }
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd >= 0) {
    (void)!syscall(SYS_write, fd, line, size);
    syscall(SYS_close, fd);
  }
}

/* The absolute path of what a call names. */
static const char* absolute(int folder, const char* path, char* out) {
  char link[64], base[PATH_MAX];
  if (path[0] == '/') {
    return path;
  }
  if (folder == AT_FDCWD) {
    strcpy(link, "/proc/self/cwd");
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  }
  const ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
  base[size > 0 ? size : 0] = '\0';
  snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
  return out;
}

static void note(const char* call, const char* what, int folder, const char* path, int other_folder, const char* other) {
  char line[3 * PATH_MAX], first[PATH_MAX], second[PATH_MAX];
  const int saved = errno;
  const int size = snprintf(line, sizeof line, "%d\t%s\t%s\t%s\t%s\n", (int)getpid(), call, what, absolute(folder, path, first),
                            other == NULL ? "" : absolute(other_folder, other, second));
  append("FILE_CALLS_LOG", line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
  errno = saved;
}

static const char* how(long result) { return result < 0 ? "failed" : "done"; }

/* Whether the call that comes now fails, with errno set. A short write is left to the caller. */
static int fails(int* is_short) {
  static _Thread_local long last;
  last = atomic_fetch_add(&counted, 1);
  const char* fault = getenv("FILE_CALLS_FAULT");
  char* kind = NULL;
  if (fault == NULL || strtol(fault, &kind, 10) != last || *kind != ':') {
    return 0;
  }
  ++kind;
  if (strcmp(kind, "kill") == 0) {
    syscall(SYS_kill, getpid(), SIGKILL);
  }
  if (strcmp(kind, "short") == 0) {
    if (is_short != NULL) {
      *is_short = 1;
    }
    return 0;
  }
  errno = strcmp(kind, "nospace") == 0 ? ENOSPC : EIO;
  return 1;
}

static int is_regular(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

__attribute__((destructor)) static void at_exit(void) {
  char line[32];
  append("FILE_CALLS_COUNT", line, (size_t)snprintf(line, sizeof line, "%ld\n", atomic_load(&counted)));
}

/* Opens. */

static int creates(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TRUNC) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

static int opened(int folder, const char* path, int flags, mode_t mode) {
  if (!creates(flags)) {
    return (int)syscall(SYS_openat, folder, path, flags, mode);
  }
  char what[128];
  struct stat info;
  const int saved = errno;
  const int there = fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) == 0;
  errno = saved;
  if (fails(NULL)) {
    return -1;
  }
  const int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
  snprintf(what, sizeof what, "%s%s%s%s%s%s%s", (flags & O_TMPFILE) == O_TMPFILE ? "tmpfile," : "", flags & O_CREAT ? "creat," : "",
           flags & O_EXCL ? "excl," : "", flags & O_TRUNC ? "trunc," : "", flags & O_NOFOLLOW ? "nofollow," : "", there ? "there," : "new,", how(fd));
  note("open", what, folder, path, 0, NULL);
  return fd;
}

HOOK(int, open, const char* path, int flags, mode_t mode) { return opened(AT_FDCWD, path, flags, mode); }
HOOK(int, open64, const char* path, int flags, mode_t mode) { return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
HOOK(int, openat, int folder, const char* path, int flags, mode_t mode) { return opened(folder, path, flags, mode); }
HOOK(int, openat64, int folder, const char* path, int flags, mode_t mode) { return opened(folder, path, flags | O_LARGEFILE, mode); }
HOOK(int, creat, const char* path, mode_t mode) { return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

/* The C library's own open() in fopen() cannot be seen. */
static int fopen_fails(const char* path, const char* mode) {
  if (mode[0] == 'r') {
    return 0;
  }
  struct stat info;
  const int saved = errno;
  const int there = lstat(path, &info) == 0;
  errno = saved;
  char what[64];
  snprintf(what, sizeof what, "creat,%s%s%s,done", mode[0] == 'w' ? "trunc," : "", strchr(mode, 'x') ? "excl," : "", there ? "there" : "new");
  if (fails(NULL)) {
    return 1;
  }
  note("fopen", what, AT_FDCWD, path, 0, NULL);
  return 0;
}
HOOK(FILE*, fopen, const char* path, const char* mode) { return fopen_fails(path, mode) ? NULL : REAL(fopen)(path, mode); }
HOOK(FILE*, fopen64, const char* path, const char* mode) { return fopen_fails(path, mode) ? NULL : REAL(fopen64)(path, mode); }

HOOK(int, mkstemp, char* path) {
  const int fd = fails(NULL) ? -1 : REAL(mkstemp)(path);
  note("open", fd < 0 ? "creat,excl,new,failed" : "creat,excl,new,done", AT_FDCWD, path, 0, NULL);
  return fd;
}
HOOK(char*, mkdtemp, char* path) {
  char* made = fails(NULL) ? NULL : REAL(mkdtemp)(path);
  note("mkdir", made == NULL ? "failed" : "done", AT_FDCWD, path, 0, NULL);
  return made;
}

/* Names. */

#define NAMED(call, result_of, folder, path, other_folder, other) \
  do {                                                            \
    const int result = fails(NULL) ? -1 : (int)(result_of);       \
    note(call, how(result), folder, path, other_folder, other);   \
    return result;                                                \
  } while (0)

HOOK(int, mkdir, const char* path, mode_t mode) { NAMED("mkdir", syscall(SYS_mkdirat, AT_FDCWD, path, mode), AT_FDCWD, path, 0, NULL); }
HOOK(int, mkdirat, int folder, const char* path, mode_t mode) { NAMED("mkdir", syscall(SYS_mkdirat, folder, path, mode), folder, path, 0, NULL); }
HOOK(int, symlink, const char* to, const char* path) { NAMED("symlink", syscall(SYS_symlinkat, to, AT_FDCWD, path), AT_FDCWD, path, 0, NULL); }
HOOK(int, link, const char* from, const char* to) { NAMED("link", syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0), AT_FDCWD, from, AT_FDCWD, to); }
HOOK(int, linkat, int from_folder, const char* from, int to_folder, const char* to, int flags) {
  NAMED("link", syscall(SYS_linkat, from_folder, from, to_folder, to, flags), from_folder, from, to_folder, to);
}
HOOK(int, rename, const char* from, const char* to) {
  NAMED("rename", syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), AT_FDCWD, from, AT_FDCWD, to);
}
HOOK(int, renameat, int from_folder, const char* from, int to_folder, const char* to) {
  NAMED("rename", syscall(SYS_renameat2, from_folder, from, to_folder, to, 0), from_folder, from, to_folder, to);
}
HOOK(int, renameat2, int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  NAMED(flags & RENAME_NOREPLACE ? "rename_new" : flags & RENAME_EXCHANGE ? "exchange" : "rename",
        syscall(SYS_renameat2, from_folder, from, to_folder, to, flags), from_folder, from, to_folder, to);
}

/* Removals are logged before they happen, with what is there. */
static int removed(int folder, const char* path, int flags) {
  struct stat info;
  char what[64];
  const int saved = errno;
  const int there = fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) == 0;
  errno = saved;
  if (!there) {
    return (int)syscall(SYS_unlinkat, folder, path, flags);
  }
  int is_short = 0;  /* only a kill counts: what cannot be removed is left, whatever a program does */
  (void)fails(&is_short);
  errno = saved;
  const int result = (int)syscall(SYS_unlinkat, folder, path, flags);
  snprintf(what, sizeof what, "%s,%s", S_ISDIR(info.st_mode) ? "directory" : "file", how(result));
  note("remove", what, folder, path, 0, NULL);
  return result;
}
HOOK(int, unlink, const char* path) { return removed(AT_FDCWD, path, 0); }
HOOK(int, rmdir, const char* path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
HOOK(int, unlinkat, int folder, const char* path, int flags) { return removed(folder, path, flags); }
HOOK(int, remove, const char* path) {
  struct stat info;
  return removed(AT_FDCWD, path, lstat(path, &info) == 0 && S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0);
}

/* Bytes. */

HOOK(ssize_t, write, int fd, const void* bytes, size_t size) {
  int is_short = 0;
  if (is_regular(fd) && fails(&is_short)) {
    return -1;
  }
  return syscall(SYS_write, fd, bytes, is_short && size > 1 ? size / 2 : size);
}
HOOK(ssize_t, writev, int fd, const struct iovec* parts, int count) {
  int is_short = 0;
  if (is_regular(fd) && fails(&is_short)) {
    return -1;
  }
  return is_short && count > 0 && parts[0].iov_len > 1 ? syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2)
                                                       : syscall(SYS_writev, fd, parts, count);
}
HOOK(ssize_t, pwrite, int fd, const void* bytes, size_t size, off_t at) {
  int is_short = 0;
  if (is_regular(fd) && fails(&is_short)) {
    return -1;
  }
  return syscall(SYS_pwrite64, fd, bytes, is_short && size > 1 ? size / 2 : size, at);
}
HOOK(ssize_t, pwrite64, int fd, const void* bytes, size_t size, off_t at) { return hook_pwrite(fd, bytes, size, at); }
HOOK(int, fsync, int fd) { return fails(NULL) ? -1 : (int)syscall(SYS_fsync, fd); }
HOOK(int, fdatasync, int fd) { return fails(NULL) ? -1 : (int)syscall(SYS_fdatasync, fd); }
HOOK(int, ftruncate, int fd, off_t size) {
  if (fails(NULL)) {
    return -1;
  }
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  const int result = (int)syscall(SYS_ftruncate, fd, size);
  note("truncate", how(result), AT_FDCWD, path, 0, NULL);
  return result;
}
HOOK(int, ftruncate64, int fd, off_t size) { return hook_ftruncate(fd, size); }
