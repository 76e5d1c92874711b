# Sourced by the other scripts of this directory: paths, messages, and the steps from a bare machine to a build.
# Progress goes to stderr, results to stdout. Nothing here reads standard input.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/shardlens

# Lets ccache reuse for a second clone what was compiled in a first one.
export CCACHE_BASEDIR=$root

build_packages=(g++ cmake ninja-build ccache mold pkg-config libfmt-dev libcli11-dev libsimdjson-dev
  nlohmann-json3-dev libboost-dev libisal-dev libzstd-dev libre2-dev libsqlite3-dev libyaml-dev libgtest-dev
  libgmock-dev)
gui_packages=(qt6-base-dev qt6-svg-dev fonts-dejavu-core)
gui_test_packages=(xvfb xdotool openbox desktop-file-utils shared-mime-info appstream)
engine_packages=(libgloo-dev libjemalloc-dev python3 python3-pip ca-certificates)

say() { printf '%s\n' "$*" >&2; }
fail() {
  say "error: $*"
  exit 4
}
seconds_since() { printf '%s s' $(($(date +%s) - $1)); }

# Number of parallel compile jobs: at most one per core and one per 2 GiB of memory, which LibTorch's headers need.
jobs() {
  local cores memory_kib
  cores=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
  memory_kib=$(awk '/^MemTotal/{print $2}' /proc/meminfo)
  local limit=$((memory_kib / 2097152))
  ((limit < 1)) && limit=1
  echo $((cores < limit ? cores : limit))
}

# Whether there is a terminal on which sudo can ask for a password. Standard input does not count: nothing here reads it.
has_terminal() { { : >/dev/tty; } 2>/dev/null; }

# may_be_root COMMAND: fails, with what to run instead, if as_root could not do it. sudo asks for a password here, once, before anything is hidden
# in a log.
may_be_root() {
  [[ $(id -u) != 0 ]] || return 0
  command -v sudo >/dev/null || fail "not root, and there is no sudo; run this as root, then try again: $1"
  ! sudo -n true 2>/dev/null || return 0
  has_terminal || fail "sudo needs a password, and there is no terminal to ask for it; run this, then try again: sudo $1"
  say "sudo asks for your password, to run: $1"
  sudo -v || fail "sudo refused; run this as root, then try again: $1"
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif has_terminal; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

# apt_get LOG arguments…: runs apt-get and waits while another apt-get or dpkg runs. DPkg::Lock::Timeout only waits for dpkg's locks; if the lists
# or the archive are locked, apt-get fails at once, so it is tried again.
apt_wait=600  # seconds
apt_get() {
  local log=$1 start told=
  start=$(date +%s)
  shift
  until as_root env DEBIAN_FRONTEND=noninteractive apt-get -o "DPkg::Lock::Timeout=$apt_wait" "$@" >"$log" 2>&1 </dev/null; do
    if ! grep -q '^E: Could not get lock' "$log" || (($(date +%s) - start >= apt_wait)); then
      tail -n 20 "$log" >&2
      fail "apt-get failed (log: $log)"
    fi
    [[ -n $told ]] || say "Waiting for another apt-get: $(sed -n 's/^E: Could not get lock //p' "$log" | head -n 1)"
    told=1
    sleep 2
  done
}

# Installs those Debian packages of "$@" that are missing; does nothing if all are installed.
need_packages() {
  command -v dpkg-query >/dev/null || {
    say "No dpkg here: assuming that the equivalents of these are installed: $*"
    return
  }
  local installed missing=() name
  installed=" $({ dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "$@" 2>/dev/null || true; } | sed -n 's/^ii *//p' | tr '\n' ' ')"
  for name in "$@"; do
    [[ $installed == *" $name "* ]] || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  local start
  start=$(date +%s)
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  mkdir -p "$cache"
  may_be_root "apt-get install --no-install-recommends ${missing[*]}"
  local log=$cache/apt.log
  apt_get "$log" -qq update
  apt_get "$log" -y install --no-install-recommends "${missing[@]}"
  say "Installed in $(seconds_since "$start")"
}

# Sets `python`: Debian's, so that the choice of wheels does not depend on PATH; otherwise any Python from 3.10 on with pip.
find_python() {
  [[ -z ${python:-} ]] || return 0
  local candidate
  for candidate in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      python=$candidate
      return
    fi
  done
  fail "no Python from 3.10 on with pip found (Debian: apt-get install python3 python3-pip)"
}

# wheels NAME FILE [pip options]: installs a requirements file into the user's cache and sets wheels_dir. The folder's name depends on the
# file's contents. It gets this name only when it is complete, so an interrupted installation is never used.
wheels() {
  local name=$1 file=$2
  shift 2
  local key
  key=$(sha256sum "$file" | cut -c1-12)
  wheels_dir=$cache/$name-$key
  [[ ! -e $wheels_dir/.complete ]] || return 0
  find_python
  mkdir -p "$cache"
  local start
  start=$(date +%s)
  exec 9>"$cache/$name-$key.lock"
  if ! flock -n 9; then
    say "Waiting for another set-up that is installing $name-$key"
    flock 9
  fi
  if [[ ! -e $wheels_dir/.complete ]]; then
    say "Installing $(grep -c '^[A-Za-z]' "$file") Python packages of ${file#"$root"/} into $wheels_dir"
    [[ $name != wheels && $name != torch-* ]] || say "  LibTorch and CUDA libraries: about 2.7 GB to download, 4.5 GB on disk, once per user; a minute or two"
    rm -rf "$wheels_dir" "$wheels_dir".partial.*
    local partial=$wheels_dir.partial.$$
    mkdir -p "$partial/tmp"
    # pip unpacks in TMPDIR and then moves the files, so TMPDIR must be on the same file system.
    local log=$cache/$name-$key.log
    if ! TMPDIR=$partial/tmp PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --disable-pip-version-check --no-warn-script-location \
      --no-compile --progress-bar off --target "$partial/site" --requirement "$file" "$@" </dev/null 2>&1 | tee "$log" |
      awk '/^ *(Downloading|Using cached) .*[0-9.]+ [MG]B/ { print "  " $1 " " $(NF - 2) " " $(NF - 1) " " $NF }
           /^Installing collected/ { print "  Unpacking" } /^ERROR/ { print } { fflush() }' >&2; then
      rm -rf "$partial"
      fail "pip could not install ${file#"$root"/} (log: $log); nothing was kept, so run this again"
    fi
    rm -rf "$partial/tmp"
    "$python" -c 'import sys; print(sys.executable)' >"$partial/site/.complete"
    mv "$partial/site" "$wheels_dir"
    rmdir "$partial"
    say "  $(du -sh "$wheels_dir" | cut -f1) in $(seconds_since "$start")"
  fi
  exec 9>&-
}

# torch_wheels [VERSION]: as wheels, for LibTorch of this version, by default that of requirements.txt.
torch_wheels() {
  local version=${1:-$(torch_version)}
  if [[ $version == "$(torch_version)" ]]; then
    wheels wheels "$root/requirements.txt"
    return
  fi
  [[ $version =~ ^[0-9]+(\.[0-9]+)+$ ]] || fail "expected a version of torch such as $(torch_version), found '$version'"
  mkdir -p "$root/build"
  sed -n "s/^torch==.*/torch==$version/p; s/^\(cuda-toolkit.*\)==.*/\1/p" "$root/requirements.txt" >"$root/build/torch-$version.txt"
  wheels "torch-$version" "$root/build/torch-$version.txt"
}
# The folder of build/ for it.
torch_folder() { [[ -z ${1:-} || $1 == "$(torch_version)" ]] && echo release || echo "torch-$1"; }
torch_version() { sed -n 's/^torch==//p' "$root/requirements.txt"; }

# The interpreter for the wheels in a folder that `wheels` created.
python_of() { cat "$1/.complete"; }

# Sets SHARDLENS_TEST_PYTHON to an interpreter with PyTorch, transformers and HTA, for tests and benchmarks that compare with them, and
# `python` to the interpreter without them. It keeps the bytecode of what it imports in build/bytecode: `wheels` compiles none, and without it
# `import torch` takes two thirds longer.
test_python() {
  wheels wheels "$root/requirements.txt"
  local torch_wheels=$wheels_dir
  python=$(python_of "$torch_wheels")
  wheels test-wheels "$root/tests/requirements.txt" --no-deps
  mkdir -p "$root/build"
  SHARDLENS_TEST_PYTHON=$root/build/test-python
  printf '#!/bin/sh\nPYTHONPATH=%s:%s PYTHONPYCACHEPREFIX=%s PYTHONDONTWRITEBYTECODE= exec %s "$@"\n' "$wheels_dir" "$torch_wheels" \
    "$root/build/bytecode" "$python" >"$SHARDLENS_TEST_PYTHON"
  chmod +x "$SHARDLENS_TEST_PYTHON"
}

# configure PRESET[:FOLDER] [-D…]: in build/PRESET, or build/FOLDER. Runs CMake only if the preset has no build files yet or a value differs. Ninja runs it again after edits.
# All sources of a target are compiled together (a unity build): most of the time is spent in headers (LibTorch's take 20 s), which are then read
# only once per target. The presets themselves compile each file separately, which is faster after an edit.
configure() {
  local preset=${1%%:*} folder=${1#*:} setting stale=
  local dir=$root/build/$folder
  shift
  set -- -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 "$@"
  [[ -e $dir/build.ninja ]] || stale=1
  for setting in "$@"; do
    setting=${setting#-D}
    grep -qE "^${setting%%=*}:[A-Z]+=${setting#*=}\$" "$dir/CMakeCache.txt" 2>/dev/null || stale=1
  done
  [[ -n $stale ]] || return 0
  say "Configuring build/$folder"
  mkdir -p "$dir"
  (cd "$root" && cmake --preset "$preset" -B "$dir" "$@") >"$dir/configure.log" 2>&1 </dev/null ||
    { rm -f "$dir/build.ninja"; tail -n 30 "$dir/configure.log" >&2; fail "CMake failed (log: build/$folder/configure.log)"; }
}

# build FOLDER [targets…]: runs Ninja; shows its progress in one line on a terminal, otherwise every 10 %.
build() {
  local preset=$1 dir=$root/build/$1 start
  shift
  start=$(date +%s)
  if [[ -t 2 ]]; then
    ninja -C "$dir" -j "$(jobs)" "$@" </dev/null >&2 || fail "the build failed"
  else
    local log=$dir/build.log
    ninja -C "$dir" -j "$(jobs)" "$@" </dev/null 2>&1 | tee "$log" | awk '
      match($0, /^\[[0-9]+\/[0-9]+\]/) { split(substr($0, 2, RLENGTH - 2), n, "/"); part = int(10 * n[1] / n[2])
        if (part > last) { last = part; printf "  [%d/%d] %s\n", n[1], n[2], "build/'"$preset"'"; fflush() } next }
      /(^|[^_])error:|^FAILED/ { print; fflush() }' >&2 ||
      { grep -vE '^\[[0-9]+/' "$log" | sed -n 1,60p >&2; fail "the build failed (log: build/$preset/build.log)"; }
  fi
  local took=$(($(date +%s) - start))
  ((took < 3)) || say "Built build/$preset in $took s"
}
