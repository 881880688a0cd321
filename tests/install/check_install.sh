#!/usr/bin/env bash
# Installs a build into a temporary prefix, compiles a small client with nothing but its pkg-config file, and runs it and the programs.
# usage: check_install.sh BUILD_FOLDER
set -euo pipefail
build=$1
prefix=$(mktemp -d)
trap 'rm -rf -- "$prefix"' EXIT
fail() {
  echo "check_install: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$prefix" > "$prefix/install.log" || fail "cmake --install failed: $(tail -n 5 "$prefix/install.log")"
for program in memserver memctl; do
  [[ -x $prefix/bin/$program ]] || fail "bin/$program was not installed"
  "$prefix/bin/$program" --help > /dev/null || fail "bin/$program --help failed"
  if [[ $(ldd "$prefix/bin/$program") =~ libtorch|libc10 ]]; then fail "bin/$program links LibTorch"; fi
done
if [[ -e $build/bin/trainer ]]; then "$prefix/bin/trainer" --help > /dev/null || fail "bin/trainer --help failed"; fi

cat > "$prefix/client.cpp" << 'END'
#include <cstdio>

#include "base/status.h"
#include "client/mem_client.h"

// Links the client for real: without a server, connecting ends with the error that says so.
int main(int, char** argv) {
  tidepool::client::ClientOptions options;
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
echo "check_install: ok"
