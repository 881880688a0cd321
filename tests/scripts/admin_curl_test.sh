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

for path in /v1/version /v1/status /v1/topology /v1/jobs /v1/quotas /v1/nvme /v1/config /v1/config/diff /v1/chunks /v1/residency /v1/health; do
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
# refuses STATUS CODE ARGUMENT...: what curl sends is answered with that status, as a problem document with that code, remedy and ABI.
refuses() {
  local expected=$1 code=$2
  shift 2
  status=$(curl --silent --show-error --max-time 10 --unix-socket "$directory/admin.sock" --output "$directory/body" --dump-header "$directory/header" \
    --write-out '%{http_code}' "$@")
  [[ $status == "$expected" ]] || fail "$* was answered with $status instead of $expected"
  grep -qi '^content-type: application/problem+json' "$directory/header" || fail "$* got no problem document"
  grep -qi '^x-tidepool-abi: [0-9]' "$directory/header" || fail "the answer to $* does not tell the ABI"
  /usr/bin/python3 -c 'import json, sys; problem = json.load(open(sys.argv[1])); assert problem["code"] == sys.argv[2] and problem["remedy"] and problem["status"] == int(sys.argv[3]), problem' \
    "$directory/body" "$code" "$expected" || fail "the problem of $* is another"
}
refuses 404 TP3101 http://x/v1/jobs/none
refuses 404 TP3101 --request DELETE http://x/v1/jobs/none
refuses 400 TP3102 'http://x/v1/jobs?colour=red'
refuses 400 TP3102 --request PUT --data '{"level":"loud"}' http://x/v1/log
refuses 400 TP3102 --request PUT --data '{' http://x/v1/log
refuses 405 TP3102 http://x/v1/drain
grep -qi '^allow: POST, DELETE' "$directory/header" || fail "GET /v1/drain does not tell the methods"
refuses 405 TP3102 --request POST http://x/v1/jobs
head -c 20000 /dev/zero > "$directory/long"
refuses 413 TP3102 --request PUT --data-binary @"$directory/long" http://x/v1/log
refuses 431 TP3102 --header "X-Long: $(head -c 9000 /dev/zero | tr '\0' x)" http://x/v1/status
# A change is made, and changed back; its caller is in the log.
[[ $(curl --silent --unix-socket "$directory/admin.sock" --request POST http://x/v1/drain) == '{"result":"done"}' ]] || fail "no drain"
ask /readyz
[[ $status == 503 ]] || fail "a server that is drained calls itself ready"
[[ $(curl --silent --unix-socket "$directory/admin.sock" --request DELETE http://x/v1/drain) == '{"result":"done"}' ]] || fail "no end of the drain"
ask /v1/events
grep -q "\"change\":\"drain\",\"uid\":$(id -u)" "$directory/body" || fail "the log does not name who drained: $(cat "$directory/body")"
# The stream of events goes on until the reader leaves.
code=0
curl --silent --max-time 1 --unix-socket "$directory/admin.sock" 'http://x/v1/events?follow=true' > "$directory/body" || code=$?
((code == 28)) || fail "the stream of events ended by itself: $code"
grep -q '"message":"ready"' "$directory/body" || fail "the stream of events is empty"
[[ $(stat -c %a "$directory/admin.sock") == 600 ]] || fail "the admin socket has mode $(stat -c %a "$directory/admin.sock")"

kill -TERM "$server"
code=0
wait "$server" || code=$?
server=0
((code == 0)) || fail "memserver ended with $code: $(cat "$directory/log")"
[[ ! -e $directory/admin.sock && ! -e $directory/data.sock ]] || fail "sockets were left behind"
echo "admin_curl_test: ok"
