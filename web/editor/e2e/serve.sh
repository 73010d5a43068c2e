#!/bin/sh
# Serves the miniature models while a command runs, each server from a folder of its own:
# serve.sh KATZ COMMAND... (which finds it in $KATZ, and the options in $KATZ_OPTIONS), with KATZ_SERVERS servers from KATZ_PORT on.
# A pack that does not import, a LoRA with notes and a picture. Two devices and a plan that is one evaluation behind, so that there is something to draw.
options=${KATZ_OPTIONS---devices cpu*2 --allow stale-controlnet --link 1}
katz=$1
shift
folder=$(mktemp -d)
servers=
trap 'kill $servers; wait $servers 2> /dev/null; rm -rf "$folder"' EXIT
# Measures the devices before servers use them, or plans of busy and of idle moments differ, and so do roundings.
"$katz" profile --devices 'cpu*2' > "$folder/profile"
ports=$(seq "$KATZ_PORT" $((KATZ_PORT + ${KATZ_SERVERS:-1} - 1)))
for port in $ports; do
  own=$folder/$port
  mkdir -p "$own/packs"
  mkdir -p "$own/models/loras"
  python3 - "$own/models/loras/inked.safetensors" << 'END'
import json, pathlib, sys
head = json.dumps({"__metadata__": {"modelspec.trigger_phrase": "inked, on paper"}}).encode()
pathlib.Path(sys.argv[1]).write_bytes(len(head).to_bytes(8, "little") + head)
END
  cp "$(dirname "$0")/../../../workflows/templates/txt2img-1.webp" "$own/models/loras/inked.webp"
  echo 'import a_module_that_nobody_has' > "$own/packs/broken.py"
  KATZ_TOKEN=token-of-the-tests "$katz" serve --port "$port" $options --packs "$own/packs" --models "$own/models" --data "$own/data" --input "$own/in" --output "$own/out" > "$own/log" 2>&1 &
  servers="$servers $!"
done
for port in $ports; do
  for _ in $(seq 300); do
    if python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$port/readyz')" 2> /dev/null; then break; fi
    sleep 0.2
  done
  # Plans once, which loads what planning needs: cold it can take so long that the server gives a page's question up.
  python3 - "$port" "$(dirname "$0")/../../../workflows/txt2img.json" << 'END'
import json, sys, urllib.error, urllib.request
port, workflow = sys.argv[1:]
body = json.dumps({"prompt": json.load(open(workflow)), "client_id": "first"}).encode()
headers = {"Content-Type": "application/json", "Cookie": "katz_token=token-of-the-tests"}
for _ in range(10):
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/katz/plan", body, headers)).read()
        break
    except urllib.error.HTTPError as refused:
        if refused.code != 503:
            raise
END
done
KATZ=$katz KATZ_OPTIONS=$options "$@"
