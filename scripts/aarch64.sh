# Sourced by scripts/wheel --aarch64, after common.sh: what compiles for ARM64 on another machine, and runs the result there.

aarch64_packages=(g++-aarch64-linux-gnu mmdebstrap qemu-user-static)

# Sets `sysroot`: a folder of the user's cache with Debian's libraries for ARM64, of the versions that this machine's sources have. It gets its name
# when it is complete.
aarch64_sysroot() {
  need_packages "${aarch64_packages[@]}"
  local libraries=() name release key
  for name in "${build_packages[@]}"; do
    case $name in
      *gtest* | *gmock*) ;;
      *-dev) libraries+=("$name") ;;
    esac
  done
  libraries+=(libc6-dev "libstdc++-$(aarch64-linux-gnu-gcc -dumpversion)-dev")
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  key=$(printf '%s\n' "$release" "${libraries[@]}" | sha256sum | cut -c1-12)
  sysroot=$cache/aarch64-$key
  [[ ! -e $sysroot/.complete ]] || return 0
  mkdir -p "$cache"
  exec 9>"$sysroot.lock"
  flock 9
  if [[ ! -e $sysroot/.complete ]]; then
    local start log=$sysroot.log partial=$sysroot.partial.$$ list
    start=$(date +%s)
    say "Extracting ${#libraries[@]} Debian packages for ARM64 into $sysroot"
    rm -rf "$sysroot" "$sysroot".partial.*
    list=$(IFS=, && echo "${libraries[*]}")
    local sources=()
    for name in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
      [[ ! -s $name ]] || sources+=("$name")
    done
    as_root mmdebstrap --variant=extract --architectures=arm64 --include="$list" "$release" "$partial" "${sources[@]}" >"$log" 2>&1 </dev/null ||
      { rm -rf "$partial"; tail -n 20 "$log" >&2; fail "mmdebstrap failed (log: $log)"; }
    as_root touch "$partial/.complete"
    mv "$partial" "$sysroot"
    say "  $(du -sh "$sysroot" | cut -f1) in $(seconds_since "$start")"
  fi
  exec 9>&-
}
