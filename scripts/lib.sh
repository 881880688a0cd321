# Functions shared by all scripts: messages, timing of parts, builds. Sourced by bash, never run.
# shellcheck shell=bash

repo=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
script=${script:-$(basename -- "$0")}
# Where scripts/setup installs what does not come from Debian; several clones can share it through TIDEPOOL_DEPS.
# shellcheck disable=SC2034  # used by the scripts that source this file
deps=${TIDEPOOL_DEPS:-$repo/.deps}

say() { printf '%s: %s\n' "$script" "$*"; }
warn() { printf '%s: %s\n' "$script" "$*" >&2; }
# fail CODE TEXT...: prints one error, in the programs' format, and exits.
fail() {
  local code=$1
  shift
  printf 'error: %s\n' "$*" >&2
  exit "$code"
}
usage_error() { fail 2 "$* (see scripts/$script --help)"; }
# The comment block at the top of a script is its help.
print_help() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"; }

part_names=()
part_seconds=()
part_results=()
# timed NAME COMMAND...: runs it and records its duration and exit code. Returns the exit code.
timed() {
  local name=$1 begin=$SECONDS code=0
  shift
  "$@" || code=$?
  part_names+=("$name")
  part_seconds+=($((SECONDS - begin)))
  part_results+=("$([[ $code == 0 ]] && echo ok || echo "failed ($code)")")
  return "$code"
}
print_parts() {
  local i total=0
  ((${#part_names[@]})) || return 0
  printf '\n%-34s %8s   %s\n' part seconds result
  for i in "${!part_names[@]}"; do
    printf '%-34s %8d   %s\n' "${part_names[i]}" "${part_seconds[i]}" "${part_results[i]}"
    total=$((total + part_seconds[i]))
  done
  printf '%-34s %8d\n\n' total "$total"
}

# Shows about ten lines of ninja's progress when not on a terminal; the log has everything.
thin_progress() {
  awk '/^\[[0-9]+\/[0-9]+\]/ { split(substr($1, 2), n, /[\/\]]/); tenth = int(10 * n[1] / n[2])
         if (tenth != last) { last = tenth; printf "  [%d/%d]\n", n[1], n[2]; fflush() } }'
}

# configure PRESET [CMAKE-ARGUMENT...]: quiet unless it fails.
configure() {
  local preset=$1 log
  shift
  log=$(mktemp) || return 1
  if ! (cd -- "$repo" && cmake --preset "$preset" "$@") > "$log" 2>&1 < /dev/null; then
    cat -- "$log" >&2
    rm -f -- "$log"
    return 1
  fi
  grep -E '^-- Tidepool:' -- "$log" | sed 's/^-- /  /' || true
  rm -f -- "$log"
}

# build FOLDER [TARGET...]: builds everything without targets. On failure shows the compiler's output.
build() {
  local folder=$1 log=$1/build.log
  shift
  if [[ -t 1 ]]; then
    cmake --build "$folder" ${1:+--target "$@"} < /dev/null
    return
  fi
  if ! cmake --build "$folder" ${1:+--target "$@"} < /dev/null 2>&1 | tee -- "$log" | thin_progress; then
    grep -vE '^\[[0-9]+/[0-9]+\]' -- "$log" | tail -n 120 >&2
    return 1
  fi
}

# folder_of PRESET: its build folder in CMakePresets.json.
folder_of() {
  if [[ $1 == release ]]; then echo "$repo/build"; else echo "$repo/build-$1"; fi
}
