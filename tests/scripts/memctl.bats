#!/usr/bin/env bats
# memctl at a memserver that runs, as an operator uses it. TIDEPOOL_BIN: the folder of the programs.

setup_file() {
  export TIDEPOOL_SOCKET_DIR=$BATS_FILE_TMPDIR/sockets
  export CONFIG=$BATS_FILE_TMPDIR/memserver.toml
  export PATH=$TIDEPOOL_BIN:$PATH
  printf '[log]\nlevel = "info"\n' > "$CONFIG"
  memserver run --pool 16MiB --rcache-limit 16MiB --keeper none --config "$CONFIG" --parent-pid $$ 2> "$BATS_FILE_TMPDIR/log" 3>&- &
  echo $! > "$BATS_FILE_TMPDIR/pid"
  memctl wait-ready --timeout 30s
}

teardown_file() {
  kill -TERM "$(cat "$BATS_FILE_TMPDIR/pid")"
}

json() { python3 -c 'import json, sys; print(eval("json.load(sys.stdin)" + sys.argv[1]))' "$1"; }

@test "status is a screen, and the same numbers as JSON" {
  run memctl status
  [ "$status" -eq 0 ]
  [[ $output == *"memserver"*"ready"* ]]
  [ "$(memctl -o json status | json '["pool"]["bytes"]')" -eq 16777216 ]
}

@test "what is not understood is told with a guess, and ends with 2" {
  run memctl staus
  [ "$status" -eq 2 ]
  [[ $output == *'did you mean "status"'* ]]
}

@test "without a server it ends with 3" {
  run memctl --socket-dir "$BATS_TEST_TMPDIR" status
  [ "$status" -eq 3 ]
}

@test "a job that is not there ends with 4" {
  run memctl ps --job none
  [ "$status" -eq 4 ]
  run memctl job release none
  [ "$status" -eq 4 ]
}

@test "a drain shows in the readiness, the health and its exit code, until it is muted or ends" {
  memctl drain
  run memctl api GET /readyz
  [ "$status" -ne 0 ]
  run memctl health
  [ "$status" -eq 1 ]
  [[ $output == *DRAINING* ]]
  memctl health --mute DRAINING --for 1h
  run memctl health
  [ "$status" -eq 0 ]
  memctl health --unmute DRAINING
  memctl health mute DRAINING 10m
  memctl health
  memctl health unmute DRAINING
  run memctl ready
  [ "$status" -ne 0 ]
  memctl live
  memctl drain --wait 1s
  memctl undrain
  memctl api GET /readyz
  run memctl health
  [ "$status" -eq 0 ]
}

@test "tiers, one chunk and a summary are there; a job that is not is not evicted" {
  memctl api GET /v1/tiers
  [[ $(memctl api GET /metrics/summary) == *"pool "*" of "* ]]
  [[ $(memctl api GET /v1/config/schema) == *'"key":"pool.size","flag":"--pool"'* ]]
  run memctl job evict none
  [ "$status" -eq 4 ]
  run memctl api GET /v1/chunks/0
  [ "$status" -eq 2 ]
}

@test "every change is an event with the caller" {
  memctl logs level debug --for 1min
  run memctl events -o json
  [[ $output == *'"change":"log level debug for '*"\"uid\":$(id -u),"*'"result":"done"'* ]]
}

@test "the configuration is shown with its origins and read again" {
  [[ $(memctl config diff) == *"pool.size"*"--pool"* ]]
  printf '[log]\nlevel = "info"\n[limits]\njobs = 7\n' > "$CONFIG"
  [[ $(memctl config reload) == *"applied: limits.jobs"* ]]
  [[ $(memctl config diff) == *"limits.jobs"*"7"*"$CONFIG:4"* ]]
  printf '[optimizer]\nthreads = 3\n' > "$CONFIG"
  run memctl config reload
  [ "$status" -eq 5 ]
  [[ $output == *TP1105*optimizer.threads* ]]
  [[ $(memctl config diff) == *"limits.jobs"* ]]
}

@test "a setting is changed in its file, and what memserver refuses is taken back" {
  printf '[log]\nlevel = "info"  # as ever\n' > "$CONFIG"
  memctl config reload
  [[ $(memctl config set limits.jobs 11 --dry-run) == *"becomes 11, in $CONFIG:5"* ]]
  [[ $(memctl config get limits.jobs) != 11 ]]
  [[ $(memctl config set limits.jobs 11) == *"becomes 11, in $CONFIG:5; it holds now" ]]
  [ "$(memctl config get limits.jobs)" = 11 ]
  memctl config set log.level warn
  grep -q '^level = "warn"  # as ever$' "$CONFIG"
  run memctl config set limits.jobs many
  [ "$status" -eq 2 ]
  [ "$(memctl config get limits.jobs)" = 11 ]
  grep -q '^jobs = 11$' "$CONFIG"
  run memctl config set pool.size 1GiB
  [ "$status" -eq 2 ]
  [[ $output == *"--pool, which wins over the file"* ]]
  [[ $(memctl config set optimizer.threads 3) == *"when memserver is started again"*optimizer.threads* ]]
  run memctl config set limits.jbos 3
  [ "$status" -eq 4 ]
  [[ $output == *'did you mean "limits.jobs"'* ]]
  printf '[log]\nlevel = "info"\n' > "$CONFIG"
  memctl config reload
}

@test "a run is recorded, and becomes a page and a trace" {
  memctl record "$BATS_TEST_TMPDIR/run.rec" --for 100ms --watch 50ms
  memctl report "$BATS_TEST_TMPDIR/run.html" --from "$BATS_TEST_TMPDIR/run.rec"
  memctl timeline "$BATS_TEST_TMPDIR/run.json" --from "$BATS_TEST_TMPDIR/run.rec"
  [ "$(json '["traceEvents"][0]["args"]["name"]' < "$BATS_TEST_TMPDIR/run.json")" = memserver ]
  grep -q '</html>' "$BATS_TEST_TMPDIR/run.html"
  run memctl timeline "$BATS_TEST_TMPDIR/step.json" --from "$BATS_TEST_TMPDIR/run.rec" --step last
  [ "$status" -eq 4 ]
  [[ $output == *"there was no job"* ]]
}

@test "a dry run says what would be, and changes nothing" {
  [[ $(memctl drain --dry-run) == *"0 jobs with 0 attached ranks go on"* ]]
  memctl ready
  [[ $(memctl shutdown --dry-run -o json) == *'"dry_run":true'*'"jobs":0,"ranks":0'* ]]
  run memctl job release none --dry-run
  [ "$status" -eq 4 ]
  printf '[log]\nlevel = "info"\n[limits]\njobs = 9\n' > "$CONFIG"
  [[ $(memctl config reload --dry-run) == *"limits.jobs applied"* ]]
  [[ $(memctl config get limits.jobs) != 9 ]]
  run memctl ps --dry-run
  [ "$status" -eq 2 ]
}

# Types what it is given into a terminal of memctl's.
at_terminal() { printf '%s\n' "$1" | script -qec "$2" /dev/null; }

@test "a person at a terminal is asked before what cannot be taken back; scripts are not" {
  memserver run --socket-dir "$BATS_TEST_TMPDIR/s" --pool 16MiB --rcache-limit 16MiB --keeper none --parent-pid $$ 2> "$BATS_TEST_TMPDIR/log" 3>&- &
  local server=$!
  memctl -s "$BATS_TEST_TMPDIR/s" wait-ready --timeout 30s
  run at_terminal n "memctl -s $BATS_TEST_TMPDIR/s shutdown --end-jobs"
  [ "$status" -eq 1 ]
  [[ $output == *"end memserver (pid $server)"*"do it? [y/N]"*"nothing was changed"* ]]
  memctl -s "$BATS_TEST_TMPDIR/s" ready
  run at_terminal "" "memctl -s $BATS_TEST_TMPDIR/s drain"
  [ "$status" -eq 0 ]
  [[ $output != *"y/N"* ]]
  run at_terminal y "memctl -s $BATS_TEST_TMPDIR/s shutdown --end-jobs"
  [ "$status" -eq 0 ]
  wait "$server"
}

@test "quiet says it by the exit code, verbose tells of requests" {
  [ -z "$(memctl -q ready)" ]
  [ -z "$(memctl -q undrain 2>&1)" ]
  [ -n "$(memctl -q status)" ]
  run memctl -v status
  [[ $output == *"memctl: GET /v1/status at $TIDEPOOL_SOCKET_DIR/admin.sock: 200"* ]]
}

@test "other nodes are asked over ssh, and the one that fails is named" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  # What ssh does: the last word goes to a shell of the other side. One node is not there, one has no memserver.
  cat > "$BATS_TEST_TMPDIR/bin/ssh" << 'END'
#!/bin/bash
[ "$1 $3" = "-o -o" ] || exit 99
node=${*: -2:1}
[ "$node" = gone ] && { echo "ssh: no route to host" >&2; exit 255; }
[ "$node" = empty ] && export TIDEPOOL_SOCKET_DIR=/none
exec sh -c "${*: -1}"
END
  chmod +x "$BATS_TEST_TMPDIR/bin/ssh"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  run memctl --node a,b status
  [ "$status" -eq 0 ]
  [[ ${lines[0]} == NODE*STATE*POOL* ]]
  [[ ${lines[1]} == a*ready* ]]
  [[ ${lines[2]} == b*ready* ]]
  run memctl --node a --node gone --node empty config show
  [ "$status" -eq 3 ]
  [[ $output == *"node gone: failed with exit code 3"*"no route to host"* ]]
  [[ $output == *"node empty: failed with exit code 3"*TP3001* ]]
  [[ $output == *NODE*SETTING*a*pool.size* ]]
  [ "$(memctl --node a,empty -o json status 2> /dev/null | json '[1]["node"]')" = empty ]
  [ "$(memctl --node a,empty -o jsonl status 2> /dev/null | grep -c '"exit_code":')" -eq 2 ]
  [[ $(memctl --node a,b -o yaml ready) == *"- node: b"*"status: ok"* ]]
  [ "$(memctl --node a,b -o json status | json '[1]["answer"]["pool"]["bytes"]')" -eq 16777216 ]
  [[ $(memctl --node a,b -o jsonl health) == *'"code":"DRAINING"'*'"node":"b"}'* ]]
  [[ $(memctl --node a,b ready) == "a  memserver is ready"*"b  memserver is ready" ]]
  [[ $(memctl --node a,b drain --dry-run) == *"== b =="*"no new jobs"* ]]
  run memctl --node a,b job release "no such; exit 0"
  [ "$status" -eq 4 ]
  [[ $output == *"node b: failed with exit code 4"*"'no such; exit 0'"* ]]
}

@test "another machine is looked at by its topology file" {
  local folder=$BATS_TEST_DIRNAME/../device/topologies
  run memctl topo --xml "$folder/two_sockets.xml"
  [ "$status" -eq 0 ]
  [[ $output == *NODE*MEMORY*ROOT*"two_sockets.xml"* ]]
  [ "$(memctl -o json topo --xml "$folder/two_sockets.xml" | json '["nodes"][1]["id"]')" -eq 1 ]
  run memctl topo --xml /none.xml
  [ "$status" -eq 4 ]
  [[ $output == *"lstopo"* ]]
}

@test "drives are measured by the memserver beside memctl" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  cp "$TIDEPOOL_BIN/memctl" "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\n[ "$3" = /bad ] && { echo "no drive" >&2; exit 7; }\n[ -n "$5" ] && echo "{\\"directory\\":\\"$3\\"}" || echo "use: $*"\n' > "$BATS_TEST_TMPDIR/bin/memserver"
  chmod +x "$BATS_TEST_TMPDIR/bin/memserver"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
  run memctl nvme tune /mnt/a /mnt/b
  [ "$status" -eq 0 ]
  [[ $output == *"started again"*"use: bench nvme /mnt/a"*"use: bench nvme /mnt/b"* ]]
  [ "$(memctl -q -o json nvme tune /mnt/a /mnt/b | json '["directories"][1]["directory"]')" = /mnt/b ]
  run memctl nvme tune /bad /mnt/b
  [ "$status" -eq 7 ]
  [[ $output == *"no drive"*"use: bench nvme /mnt/b"* ]]
  run memctl nvme tune
  [ "$status" -eq 4 ]
}

@test "doctor and explain tell what to do" {
  run memctl doctor
  [ "$status" -eq 0 ]
  [[ $(memctl explain TP2101) == *PoolFull* ]]
  "$BATS_TEST_DIRNAME/../../scripts/errors_page.py" --memctl "$TIDEPOOL_BIN/memctl" --check
}

@test "memserver ends when it is asked to, with its jobs or not at all where nobody would hold them" {
  memserver run --socket-dir "$BATS_TEST_TMPDIR/s" --pool 16MiB --rcache-limit 16MiB --keeper none --parent-pid $$ 2> "$BATS_TEST_TMPDIR/log" 3>&- &
  local server=$!
  memctl -s "$BATS_TEST_TMPDIR/s" wait-ready --timeout 30s
  run memctl -s "$BATS_TEST_TMPDIR/s" shutdown
  [ "$status" -eq 1 ]
  [[ $output == *TP3103*keep=false* ]]
  memctl -s "$BATS_TEST_TMPDIR/s" shutdown --end-jobs
  wait "$server"
  grep -q "asked for by an admin (uid $(id -u), pid " "$BATS_TEST_TMPDIR/log"
}
