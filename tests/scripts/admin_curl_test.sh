#!/usr/bin/env bash
# The admin socket answers curl: every path that needs no job, with the status and the kind of body that docs/admin_api.md promises.
# usage: admin_curl_test.sh BIN_FOLDER
set -euo pipefail
bin=$1
directory=$(mktemp -d)
server=0
clean_up() {
  ((server == 0)) || kill -KILL "$server" 2> /dev/null || true
  rm -rf -- "$directory"
}
trap clean_up EXIT
fail() {
  echo "admin_curl_test: $*" >&2
  exit 1
}
# ask PATH: the body on stdout; the HTTP status in the variable `status`.
ask() {
  status=$(curl --silent --show-error --max-time 10 --unix-socket "$directory/admin.sock" --output "$directory/body" --write-out '%{http_code}' "http://x$1")
}

"$bin/memserver" run --socket-dir "$directory" --pool 16MiB --rcache-limit 16MiB --parent-pid $$ 2> "$directory/log" &
server=$!
"$bin/memctl" -s "$directory" wait-ready > /dev/null || fail "memserver did not start: $(cat "$directory/log")"

for path in /v1/version /v1/status /v1/jobs /v1/chunks /v1/residency; do
  ask "$path"
  [[ $status == 200 ]] || fail "$path answered $status"
  /usr/bin/python3 -m json.tool "$directory/body" > /dev/null || fail "$path answered no JSON: $(cat "$directory/body")"
done
for path in /livez /readyz; do
  ask "$path"
  [[ $status == 200 ]] || fail "$path answered $status"
done
ask /v1/no-such-path
[[ $status == 404 ]] || fail "an unknown path answered $status"
[[ $(stat -c %a "$directory/admin.sock") == 600 ]] || fail "the admin socket has mode $(stat -c %a "$directory/admin.sock")"

kill -TERM "$server"
code=0
wait "$server" || code=$?
server=0
((code == 0)) || fail "memserver ended with $code: $(cat "$directory/log")"
[[ ! -e $directory/admin.sock && ! -e $directory/data.sock ]] || fail "sockets were left behind"
echo "admin_curl_test: ok"
