#!/bin/sh
# Serves the miniature models from a folder of its own while a command runs: serve.sh KATZ COMMAND...
# Two devices and a plan that is one evaluation behind, so that there is something to draw.
options=${KATZ_OPTIONS---devices cpu*2 --allow stale-controlnet --link 1}
katz=$1
shift
folder=$(mktemp -d)
KATZ_TOKEN=token-of-the-tests "$katz" serve --port "$KATZ_PORT" $options --data "$folder/data" --input "$folder/in" --output "$folder/out" > "$folder/log" 2>&1 &
server=$!
trap 'kill $server; wait $server 2> /dev/null; rm -rf "$folder"' EXIT
for _ in $(seq 300); do
  if python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$KATZ_PORT/readyz')" 2> /dev/null; then break; fi
  sleep 0.2
done
"$@"
