"""Other streaming datasets on the same samples and server. Runs with the Python of an environment that has them.

PYTHON streaming_peers.py litdata|mosaicml-streaming write FOLDER COUNT
PYTHON streaming_peers.py litdata|mosaicml-streaming read ENDPOINT LOCAL LIMIT EPOCHS BATCH STEP
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
SHARD_BYTES = 64 << 20  # the default of both


def samples(count: int) -> Iterable[dict[str, Any]]:
    from examples import make_examples

    for example in make_examples(count):
        arrays = {"latent": example.latent, "text": example.text, "pooled": example.pooled}
        yield {name: tensor.numpy().tobytes() for name, tensor in arrays.items()}


def one_sample(index: int) -> dict[str, Any]:
    from examples import make_example

    example = make_example(index)
    arrays = {"latent": example.latent, "text": example.text, "pooled": example.pooled}
    return {name: tensor.numpy().tobytes() for name, tensor in arrays.items()}


def write_mosaicml(folder: str, count: int) -> None:
    from streaming import MDSWriter

    columns = {"latent": "bytes", "text": "bytes", "pooled": "bytes"}
    with MDSWriter(out=folder, columns=columns, size_limit=SHARD_BYTES) as writer:
        for sample in samples(count):
            writer.write(sample)


def read_mosaicml(endpoint: str, local: str, limit: int, batch: int) -> Any:
    os.environ["S3_ENDPOINT_URL"] = endpoint
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(
        remote="s3://set", local=local, shuffle=True, batch_size=batch, cache_limit=limit or None, num_canonical_nodes=1
    )
    return DataLoader(data, batch_size=batch, num_workers=2, prefetch_factor=4, persistent_workers=True)


def write_litdata(folder: str, count: int) -> None:
    import litdata

    litdata.optimize(
        fn=one_sample,
        inputs=list(range(count)),
        output_dir=folder,
        chunk_bytes=SHARD_BYTES,
        num_workers=1,
        verbose=False,
    )


def read_litdata(endpoint: str, local: str, limit: int, batch: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it knows no option for a server without TLS
    options = {"endpoint_url": endpoint, "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    data = StreamingDataset(
        "s3://set/", cache_dir=local, shuffle=True, max_cache_size=limit or "100GB", storage_options=options
    )
    return StreamingDataLoader(data, batch_size=batch, num_workers=2, prefetch_factor=4, persistent_workers=True)


def read(loader: Any, epochs: int, step: float) -> dict[str, list[float]]:
    """Seconds of each epoch, and of waiting for its batches."""
    found: dict[str, list[float]] = {"seconds": [], "waited": [], "batches": []}
    for _ in range(epochs):
        began, waited, count = time.perf_counter(), 0.0, 0
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            count += 1
            time.sleep(step)
        for name, value in (("seconds", time.perf_counter() - began), ("waited", waited), ("batches", count)):
            found[name].append(value)
    return found


def main() -> None:
    peer, what, *rest = sys.argv[1:]
    write, opened = {"litdata": (write_litdata, read_litdata), "mosaicml-streaming": (write_mosaicml, read_mosaicml)}[
        peer
    ]
    if what == "write":
        write(rest[0], int(rest[1]))
        return
    endpoint, local, limit, epochs, batch, step = rest
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    print(json.dumps(read(opened(endpoint, local, int(limit), int(batch)), int(epochs), float(step))))


if __name__ == "__main__":
    main()
