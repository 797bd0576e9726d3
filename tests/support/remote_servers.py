"""Real servers on loopback: moto's S3, nginx, and a small server of ranges in Python for machines without nginx."""

import http.client
import logging
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streamcache.dataset_cache import LocalStorage, Storage

BUCKET = "bucket"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def s3_server() -> Iterator[str]:
    """The `host:port` of an S3 server with one empty bucket."""
    from moto.server import ThreadedMotoServer  # takes seconds to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"{host}:{port}"
    try:
        request(address, "PUT", f"/{BUCKET}")
        yield address
    finally:
        server.stop()


@contextmanager
def range_server(folder: Path, ranges: bool = True) -> Iterator[str]:
    """A server of the files in a folder. With `ranges` off it always sends whole files, as some do."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = Path(self.translate_path(self.path))
            if not path.is_file():
                return self.send_error(404)
            data, status = path.read_bytes(), path.stat()
            wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", "")) if ranges else None
            begin, end = (int(wanted[1]), int(wanted[2] or len(data) - 1)) if wanted else (0, len(data) - 1)
            end = min(end, len(data) - 1)
            if wanted and begin > end:
                return self.send_error(416)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
            self.send_header("ETag", f'"{status.st_mtime_ns:x}-{status.st_size:x}"')
            self.send_header("Last-Modified", self.date_time_string(status.st_mtime))
            self.send_header("Content-Length", str(end - begin + 1))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[begin : end + 1])

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    def handler(*args: object) -> Handler:
        return Handler(*args, directory=str(folder))  # type: ignore[arg-type]

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def nginx_server(folder: Path, work: Path) -> Iterator[str]:
    """nginx as it comes, for the files in a folder."""
    assert NGINX is not None
    port = _free_port()
    work.mkdir(parents=True)
    conf = work / "nginx.conf"
    temporary = " ".join(f"{kind}_temp_path {work}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    conf.write_text(
        f"daemon off; worker_processes 1; pid {work}/pid; error_log {work}/error.log; user root;\n"
        f"events {{}} http {{ access_log off; client_body_temp_path {work}/body; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
    process = subprocess.Popen([NGINX, "-p", str(work), "-c", str(conf)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def upload(folder: Path, target: Storage) -> None:
    """Put a published cache at an address: shards, index, then the manifest."""
    source = LocalStorage(folder)
    for name in [f"shards/{file}" for file in source.list("shards")]:
        source.link_or_copy(name, target, name)
    for name in sorted(source.list(), reverse=True):
        status = source.stat(name)
        if status is not None and status.kind == "file" and name.endswith(".safetensors"):
            source.link_or_copy(name, target, name)
    target.replace("dataset.json", (folder / "dataset.json").read_bytes())


def request(address: str, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        data = response.read()
        assert response.status < 300, data
        return data
    finally:
        connection.close()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port: int, process: subprocess.Popen) -> None:
    import socket

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("nginx did not start")
