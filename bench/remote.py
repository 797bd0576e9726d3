"""Reading from an address: batches against plain ranged GETs of the same bytes from the same server, in turns."""

import http.client
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

from ..dataset_cache import open_cache
from .examples import EXAMPLE_BYTES
from .peers import Limit
from .reading import BATCH, write_cache
from .rounds import Settings, take_turns
from .table import Figure

PLAIN, OURS = "plain ranged GETs", "read_batch"
_SERVER = """
import http.server, os, re, sys

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        with open(self.translate_path(self.path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.fullmatch("bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", "bytes=0-" + str(size - 1)))
            begin, end = int(wanted[1]), min(int(wanted[2]), size - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
            self.send_header("Content-Length", str(end - begin + 1))
            self.send_header("Last-Modified", self.date_time_string(0))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(os.pread(file.fileno(), end - begin + 1, begin))

    do_HEAD = do_GET

    def log_message(self, *args):
        pass

os.chdir(sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def measure_remote(folder: Path, settings: Settings) -> list[Figure]:
    """The limit asks for one range per sample, as many at once as there are samples, on connections that stay open."""
    write_cache(folder / "cache", settings.samples)
    count = settings.samples
    with _server(folder) as port, closing(Limit(folder / "cache", count, count, BATCH)) as limit:
        cache = open_cache(f"http://127.0.0.1:{port}/cache")
        slots = cycle([cache.buffers(BATCH), cache.buffers(BATCH)])  # as in the trainer
        order = random.Random(0)
        rounds = [
            [order.sample(range(count), BATCH) for _ in range(settings.batches)] for _ in range(settings.rounds + 1)
        ]
        names = [path.name for path in sorted((folder / "cache" / "shards").iterdir())]
        with _Plain(port) as plain:
            readers = {
                PLAIN: lambda indices: plain.read(
                    [(names[limit.files.index(file)], *run) for i in indices for file, *run in limit.runs[i]]
                ),
                OURS: lambda indices: cache.read_batch(indices, buffers=next(slots)),
            }
            times = take_turns(readers, rounds)
    group = f"Reading random batches of {BATCH} by HTTP ranges from this machine ({EXAMPLE_BYTES // 1000} KB a sample)"
    return [
        Figure(group, PLAIN, times.median(PLAIN) * 1e3, "ms per batch", note="the limit: 1.00"),
        Figure(group, OURS, times.ratio(OURS, PLAIN), "× limit", 1.3),
    ]


class _Plain:
    """Ranged GETs without anything else."""

    def __init__(self, port: int) -> None:
        self._pool = ThreadPoolExecutor(BATCH)
        self._connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(BATCH)]

    def __enter__(self) -> "_Plain":
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def read(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        return list(self._pool.map(_get, self._connections, ranges))


def _get(connection: http.client.HTTPConnection, wanted: tuple[str, int, int]) -> bytes:
    name, offset, size = wanted
    connection.request("GET", f"/cache/shards/{name}", headers={"Range": f"bytes={offset}-{offset + size - 1}"})
    data = connection.getresponse().read()
    assert len(data) == size
    return data


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    """A server of the files in a folder, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(20)
