#!/bin/sh
# Serves the miniature models from a folder of its own while a command runs: serve.sh KATZ COMMAND...
katz=$1
shift
folder=$(mktemp -d)
"$katz" serve --port "$KATZ_PORT" --data "$folder/data" --input "$folder/in" --output "$folder/out" > "$folder/log" 2>&1 &
server=$!
trap 'kill $server; wait $server 2> /dev/null; rm -rf "$folder"' EXIT
for _ in $(seq 300); do
  if python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$KATZ_PORT/readyz')" 2> /dev/null; then break; fi
  sleep 0.2
done
"$@"
