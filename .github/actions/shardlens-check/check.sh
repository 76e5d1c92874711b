#!/usr/bin/env bash
# Runs `shardlens check` with the action's inputs (BASELINE, TRACES, THRESHOLDS, MAX_PEAK_MEMORY, INCONCLUSIVE_IS, JUNIT), and writes the verdict to
# $GITHUB_OUTPUT, a table to $GITHUB_STEP_SUMMARY, and a message that GitHub shows. The exit code is that of check.
set -euo pipefail

# The lines of an input without the spaces around them; empty lines are left out.
lines() {
  local line
  while read -r line; do
    [[ -z $line ]] || printf '%s\n' "$line"
  done <<<"$1"
}

# A path or glob a line; a glob without match stays as it is, so that check names it.
paths() {
  local line
  while IFS= read -r line; do
    [[ -z $line ]] || compgen -G "$line" || printf '%s\n' "$line"
  done <<<"$(lines "$1")"
}

refuse() {
  echo "::error title=shardlens check::$1"
  echo "verdict=error" >>"$GITHUB_OUTPUT"
  exit 2
}

command -v shardlens >/dev/null || refuse "no program shardlens on PATH; give the input 'wheel', or install it in an earlier step"
mapfile -t baseline < <(paths "$BASELINE")
mapfile -t traces < <(paths "$TRACES")
((${#traces[@]} > 0)) || refuse "the input 'traces' is empty; expected the runs that an earlier step recorded, one path or glob a line, such as runs/*"
options=()
((${#baseline[@]} == 0)) || options+=(--baseline "${baseline[@]}")
while IFS= read -r line; do
  [[ -z $line ]] || options+=(--metric "$line")
done <<<"$(lines "$THRESHOLDS")"
[[ -z $MAX_PEAK_MEMORY ]] || options+=(--max-peak-memory "$MAX_PEAK_MEMORY")
[[ -z $INCONCLUSIVE_IS ]] || options+=(--inconclusive-is "$INCONCLUSIVE_IS")

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir -p "$(dirname "$JUNIT")"
status=0
shardlens check --candidate "${traces[@]}" "${options[@]}" --junit "$JUNIT" --markdown "$directory/summary.md" \
  >"$directory/output" 2>"$directory/errors" || status=$?
cat "$directory/output" "$directory/errors"
[[ ! -s $directory/summary.md ]] || cat "$directory/summary.md" >>"$GITHUB_STEP_SUMMARY"
first=$(grep -m 1 . "$directory/output" "$directory/errors" -h | head -n 1 || true)
case $first in
  pass* | regression* | inconclusive*) verdict=${first%%[: ]*} ;;
  *) verdict=error ;;
esac
echo "verdict=$verdict" >>"$GITHUB_OUTPUT"
((status == 0)) || echo "::error title=shardlens check::$first"
exit "$status"
