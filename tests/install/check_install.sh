#!/usr/bin/env bash
# Installs a build into a temporary prefix, compiles a small client with nothing but its pkg-config file, and runs it and the programs; then
# makes the Debian packages, and looks at what is in them and what they depend on.
# usage: check_install.sh BUILD_FOLDER
set -euo pipefail
build=$1
prefix=$(mktemp -d)
trap 'rm -rf -- "$prefix"' EXIT
fail() {
  echo "check_install: $*" >&2
  exit 1
}

components=(server dev)
[[ ! -e $build/bin/trainer ]] || components+=(trainer)
for component in "${components[@]}"; do
  cmake --install "$build" --prefix "$prefix" --component "$component" > "$prefix/install.log" || fail "cmake --install failed: $(tail -n 5 "$prefix/install.log")"
done
for program in memserver memctl; do
  [[ -x $prefix/bin/$program ]] || fail "bin/$program was not installed"
  "$prefix/bin/$program" --help > /dev/null || fail "bin/$program --help failed"
  if [[ $(ldd "$prefix/bin/$program") =~ libtorch|libc10 ]]; then fail "bin/$program links LibTorch"; fi
done
if [[ -e $build/bin/trainer ]]; then "$prefix/bin/trainer" --help > /dev/null || fail "bin/trainer --help failed"; fi

for file in lib/systemd/system/tidepool-memserver.service lib/sysusers.d/tidepool.conf share/doc/tidepool/examples/memserver.toml \
  share/bash-completion/completions/memctl share/zsh/vendor-completions/_memserver share/tidepool/slurm/prolog.sh; do
  [[ -s $prefix/$file ]] || fail "$file was not installed"
done
[[ ! -e $prefix/etc ]] || fail "the configuration of this machine would have been touched"
# Every flag and command of --help is in the manual.
programs=(memserver memctl)
[[ ! -e $build/bin/trainer ]] || programs+=(trainer)
for program in "${programs[@]}"; do
  for file in "share/bash-completion/completions/$program" "share/zsh/vendor-completions/_$program"; do
    [[ -s $prefix/$file ]] || fail "$file was not installed"
  done
  manual=$(< "$prefix/share/man/man1/$program.1")
  manual=${manual//\\-/-}
  for word in $("$prefix/bin/$program" --help | grep -oE '^  (-., ?)?(--)?[a-z][a-z-]+' | sed 's/.*[ ,]//'); do
    [[ $manual == *"$word"* ]] || fail "$program.1 does not tell of $word"
  done
done

cat > "$prefix/client.cpp" << 'END'
#include <cstdio>

#include "base/clock.h"
#include "base/status.h"
#include "client/mem_client.h"

// Links the client for real: without a server, connecting ends with the error that says so.
int main(int, char** argv) {
  tidepool::SteadyClock clock;
  tidepool::client::ClientOptions options;
  options.clock = &clock;
  options.socket_dir = argv[1];
  options.connect_timeout_ns = 1'000'000;
  const auto client = tidepool::client::MemClient::Connect(options, tidepool::shm::JobSpec(), 0);
  std::puts(client.ok() ? "connected" : client.status().Line().c_str());
  return client.ok() ? 0 : client.status().exit_code();
}
END
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname -- "$(find "$prefix" -name tidepool-client.pc)")
# shellcheck disable=SC2046  # the flags are words
g++ "$prefix/client.cpp" -o "$prefix/client" $(pkg-config --cflags --libs tidepool-client) || fail "the client did not compile"
code=0
"$prefix/client" "$prefix/no-server" || code=$?
((code == 3)) || fail "the client ended with $code instead of 3 (no server)"

(cd -- "$build" && cpack -G DEB -B "$prefix/packages") > "$prefix/cpack.log" 2>&1 || fail "cpack failed: $(tail -n 5 "$prefix/cpack.log")"
packages=("$prefix"/packages/tidepool_*_amd64.deb "$prefix"/packages/tidepool-dev_*_amd64.deb)
listing=$(dpkg-deb --contents "${packages[0]}")
for file in usr/bin/memserver usr/bin/memctl etc/tidepool/memserver.toml usr/lib/systemd/system/tidepool-memserver.service usr/lib/sysusers.d/tidepool.conf \
  usr/share/man/man1/memctl.1 usr/share/man/man1/memserver.1 usr/share/bash-completion/completions/memserver usr/share/zsh/vendor-completions/_memctl; do
  [[ $listing == *" ./$file"$'\n'* || $listing == *" ./$file" ]] || fail "$file is not in ${packages[0]##*/}"
done
[[ ! $listing =~ bin/trainer|\.a$'\n'|include/ ]] || fail "${packages[0]##*/} holds more than it should"
[[ ! $(awk '$2 != "root/root"' <<< "$listing") ]] || fail "files of ${packages[0]##*/} are not root's"
depends=$(dpkg-deb --field "${packages[0]}" Depends)
for library in libc6 libhwloc15 liburing2 libisal2; do
  [[ $depends == *"$library (>="* ]] || fail "${packages[0]##*/} does not depend on $library, but on $depends"
done
[[ $(dpkg-deb --info "${packages[0]}" conffiles) == /etc/tidepool/memserver.toml ]] || fail "the configuration would be overwritten by an upgrade"
listing=$(dpkg-deb --contents "${packages[1]}")
[[ $listing == *libtidepool_client.a* && $listing == *include/tidepool/client/mem_client.h* && $listing == *tidepool-client.pc* ]] || fail "the client is not in ${packages[1]##*/}"
[[ ! $listing =~ usr/bin|/etc/ ]] || fail "${packages[1]##*/} holds more than it should"
echo "check_install: ok"
