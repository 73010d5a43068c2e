"""`python -m katz_graph.bench.slow_store FOLDER`: serves the files of a folder by HTTP at a byte
rate, under any number of URLs. Part of `katz bench loading`.

`/RATE/ANYTHING/NAME` serves the file NAME at RATE bytes per second; range requests are not limited.
The port is printed.
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MIN_PIECE_BYTES = 2**14  # bytes, minimum size of a piece
PIECE_INTERVAL_S = 0.01  # between pieces


class Shelf(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        _, rate, *_, name = self.path.split("/")
        content, asked = (self.folder / name).read_bytes(), self.headers.get("Range")
        first, last = 0, len(content) - 1
        if asked is not None:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end), last) if end else last
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{len(content)}"')
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        began, piece = (
            time.perf_counter(),
            max(MIN_PIECE_BYTES, int(PIECE_INTERVAL_S * float(rate))),
        )
        for start in range(first, last + 1, piece):
            self.wfile.write(content[start : min(start + piece, last + 1)])
            if asked is None:
                ends = began + (start + piece - first) / float(rate)
                time.sleep(max(0.0, ends - time.perf_counter()))

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def main(folder: str) -> None:
    Shelf.folder = Path(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
