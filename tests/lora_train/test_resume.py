"""A run's files are true after a kill, a refusal or a resume: metrics, images, states, and the rules of training."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.loop import TrainHooks, train, train_in_run
from streamcache.lora_train.optimizers import make_optimizer, was_fused
from streamcache.lora_train.run.folder import open_run, read_run_json
from streamcache.lora_train.run.metrics import read_curves, read_metrics
from streamcache.lora_train.run.saved_state import StateFolder, pack, read_state
from streamcache.lora_train.step import plain_mean

from ..support.odd_files import KINDS, make_unreadable, put_odd, returns
from ..support.small_parts import SHAPES, SmallDenoiser, decode, latent_of, make_dataset, run_training, words_of
from .short_runs import assert_same_state, last_state, losses

ROOT = Path(__file__).resolve().parents[2]
LOOKS = {"steps": 8, "validation_share": 0.1, "validation_every": 4, "sample_every": 4, "sample_steps": 1}


def validations(folder: Path) -> list[tuple[int, float]]:
    return read_curves(folder / "runs/test/metrics.jsonl").validation


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The modification time and content of every file, except locks."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


KILLED = """
import os, signal, sys
root, folder, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
sys.path.insert(0, root)
import tests.conftest
from pathlib import Path
from tests.support.small_parts import open_cache, run_training
from streamcache.lora_train.session import Session
save = Session.save
def save_and_die(self):
    save(self)
    if self.step == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
Session.save = save_and_die
run_training(Path(folder), open_cache(Path(folder).parent / "set"), **settings)
"""


def kill_after_saving(folder: Path, step: int, **settings) -> None:
    """Train in another process that dies as soon as the state of `step` is on disk."""
    command = [sys.executable, "-c", KILLED, str(ROOT), str(folder), repr(settings), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="kills a process with SIGKILL")
@pytest.mark.parametrize("step", [4, 8])
def test_a_kill_between_saving_and_validating_loses_no_validation_and_no_image(tmp_path, step: int) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "whole", dataset, save_every=4, **LOOKS)
    kill_after_saving(tmp_path / "killed", step, save_every=4, **LOOKS)
    assert [at for at, _ in validations(tmp_path / "killed")] == list(range(0, step, 4))
    run_training(tmp_path / "killed", dataset, mode="resume", save_every=4, **LOOKS)
    assert validations(tmp_path / "killed") == validations(tmp_path / "whole")
    images = [{path.name: path.read_bytes() for path in (tmp_path / part / "runs/test/samples").iterdir()}
              for part in ("whole", "killed")]  # fmt: skip
    assert images[0] == images[1]


def test_resuming_a_finished_run_repeats_no_validation_and_writes_no_state_or_image(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, **LOOKS)
    before = files_of(tmp_path / "runs/test")
    run_training(tmp_path, dataset, mode="resume", **LOOKS)
    after = files_of(tmp_path / "runs/test")
    assert [step for step, _ in validations(tmp_path)] == [0, 4, 8]
    unchanged = [name for name in before if name.startswith(("states", "samples", "report", "time"))]
    assert len(unchanged) > 5 and all(after[name] == before[name] for name in unchanged)


def test_a_stop_is_validated_once_when_the_run_resumes(tmp_path) -> None:
    dataset, asked = make_dataset(tmp_path / "set"), iter(range(100))
    run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(asked) == 4), **LOOKS)
    run_training(tmp_path, dataset, mode="resume", **LOOKS)
    assert [step for step, _ in validations(tmp_path)] == [0, 4, 8]


def event_steps(folder: Path) -> list[int]:
    """The steps of the losses in TensorBoard's files, without those that a resumed run took back."""
    from tensorboardX.proto.event_pb2 import Event

    found: list[int] = []
    for path in sorted(folder.glob("events.*"), key=lambda path: int(path.suffix[1:])):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            if event.session_log.status == 1:  # START: later steps of earlier files count no more
                found = [step for step in found if step < event.step]
            found += [event.step for value in event.summary.value if value.tag == "loss"]
    return found


@pytest.mark.skipif(os.name != "posix", reason="kills a process with SIGKILL")
def test_tensorboard_has_every_saved_step_after_a_kill_and_none_twice_after_a_resume(tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    dataset = make_dataset(tmp_path / "set")
    kill_after_saving(tmp_path / "run", 4, steps=8, save_every=2, tensorboard=True)
    assert event_steps(tmp_path / "run/runs/test/events") == [1, 2, 3, 4]
    # As if killed a little later, with steps after the last state.
    (tmp_path / "run/runs/test/states/step-00000004.safetensors").unlink()
    run_training(tmp_path / "run", dataset, mode="resume", steps=8, save_every=2, tensorboard=True)
    assert event_steps(tmp_path / "run/runs/test/events") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_training_loss_is_reported_without_sample_weights_like_the_validation_loss(tmp_path) -> None:
    for weight in (1.0, 0.25):
        dataset = make_dataset(tmp_path / f"set {weight}", weight=weight)
        run_training(tmp_path / str(weight), dataset, learning_rate=1e-9, validation_share=0.1)
    plain, weighted = (read_curves(tmp_path / str(w) / "runs/test/metrics.jsonl") for w in (1.0, 0.25))
    assert [loss for _, loss in weighted.losses] == pytest.approx([loss for _, loss in plain.losses], rel=1e-4)
    assert weighted.validation[0] == plain.validation[0]


def test_a_nan_in_a_prior_row_is_reported_although_its_loss_is_not(tmp_path) -> None:
    class BadPrior(SmallDenoiser):
        def predict(self, *args):
            return torch.cat([super().predict(*args)[:-1], torch.full((1, 4, *args[0].shape[2:]), torch.nan)])

    make_dataset(tmp_path / "set")
    with CacheWriter(tmp_path / "set", append=True) as writer:
        for number, shape in enumerate(SHAPES):
            writer.add(latent_of(50 + number, shape), words_of(50), "a prior caption", source=f"p{number}", set="prior")
        writer.describe_set("prior", {"prior": True})
    with pytest.raises(TrainError, match="step 1: the loss is nan"):
        run_training(tmp_path, open_cache(tmp_path / "set"), BadPrior(), prior_weight=0.5)


def write_old_state(path: Path) -> None:
    """Rewrite a state as version 0.2 did: without rules and checksum."""
    from safetensors.torch import save_file

    state = read_state(path)
    fields = {**vars(state), "origin": vars(state.origin)}
    del fields["rules"]
    tree, tensors = pack(fields)
    save_file(tensors, path, {"format": "streamcache-state-1", "state": json.dumps(tree)})


def test_a_run_that_began_with_an_older_version_keeps_its_warmup_to_the_end(tmp_path) -> None:
    dataset, asked = make_dataset(tmp_path / "set"), iter(range(100))
    settings = {"steps": 8, "warmup_steps": 6, "learning_rate": 1.0}
    run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(asked) == 2), **settings)
    write_old_state(tmp_path / "runs/test/states/step-00000002.safetensors")
    run_training(tmp_path, dataset, mode="resume", **settings)
    rows = [row for row in read_metrics(tmp_path / "runs/test/metrics.jsonl") if "loss" in row]
    assert [row["learning_rate"] for row in rows[:2]] == pytest.approx([0, 1 / 6])  # as diffusers and kohya
    assert [row["learning_rate"] for row in rows[2:]] == pytest.approx([3 / 7, 4 / 7, 5 / 7, 6 / 7, 1, 1])
    assert StateFolder(tmp_path / "runs/test/states").latest().rules == 1


def test_a_run_that_began_with_an_older_version_keeps_its_optimizer_and_its_dropout(tmp_path, monkeypatch) -> None:
    settings = {"steps": 8, "adapter_dropout": 0.3, "ema_decay": 0.9}
    dataset = make_dataset(tmp_path / "set")
    with monkeypatch.context() as patch:
        patch.setattr("streamcache.lora_train.session.RULES", 2)
        patch.setattr("streamcache.lora_train.parts.make_optimizer", lambda *args: make_optimizer(*args[:3], False))
        run_training(tmp_path / "whole", dataset, **settings)
        asked = iter(range(100))
        run_training(tmp_path / "parts", dataset, hooks=TrainHooks(stop=lambda: next(asked) == 3), **settings)
    run_training(tmp_path / "parts", dataset, mode="resume", **settings)
    old, continued = (last_state(tmp_path / name) for name in ("whole", "parts"))
    assert_same_state(old, continued)
    assert continued.rules == 2 and not was_fused(continued.optimizer)
    run_training(tmp_path / "new", dataset, **settings)
    new = last_state(tmp_path / "new")
    assert was_fused(new.optimizer) and new.rules > 2
    assert not torch.equal(new.adapter["up.lora_up.weight"], old.adapter["up.lora_up.weight"])


def test_a_run_of_a_newer_version_is_refused(tmp_path, monkeypatch) -> None:
    dataset = make_dataset(tmp_path / "set")
    with monkeypatch.context() as patch:
        patch.setattr("streamcache.lora_train.session.RULES", 99)
        run_training(tmp_path, dataset)
    with pytest.raises(TrainError, match="began with a newer version"):
        run_training(tmp_path, dataset, mode="resume", steps=9)


REFUSED = [
    ({"caption_dropout": 0.5}, "no encoded empty caption"),
    ({"targets": "nothing_like_this"}, "nothing_like_this"),
    ({"sample_every": 1, "sample_captions": ("a dragon",)}, "a dragon"),
    ({"masked_loss": True}, "no masks"),
]


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_a_refused_training_leaves_no_folder_and_changes_nothing_in_an_existing_run(
    tmp_path, mode: str, settings: dict, words: str
) -> None:
    dataset = make_dataset(tmp_path / "set", empty=False)
    if mode != "new":
        run_training(tmp_path, dataset)
        (tmp_path / "runs/test/run.json").write_text('{"notes": "mine", "status": "done", "step": 6}')
    before = files_of(tmp_path / "runs")
    with pytest.raises(TrainError, match=words):
        run_training(tmp_path, dataset, mode=mode, accept_changes=True, **settings)
    assert files_of(tmp_path / "runs") == before
    assert mode != "new" or not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_missing_tensorboard_is_refused_before_the_run_begins(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(TrainError, match="pip install tensorboardX"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), tensorboard=True)
    assert not (tmp_path / "runs/test").exists()


def test_watching_begins_only_after_all_checks(tmp_path) -> None:
    watched = []

    def watch(run):
        watched.append(run.name)
        return nullcontext(TrainHooks())

    dataset, runs = make_dataset(tmp_path / "set"), tmp_path / "runs"
    small = {"steps": 2, "batch_size": 4, "rank": 2, "name": "cat"}
    with pytest.raises(TrainError):
        config = TrainConfig(masked_loss=True, **small)
        train_in_run(SmallDenoiser(), dataset, config, runs, lambda run: tmp_path / "cat.safetensors", watch)
    assert not watched
    config = TrainConfig(**small)
    train_in_run(SmallDenoiser(), dataset, config, runs, lambda run: tmp_path / "cat.safetensors", watch)
    assert watched == ["cat"] and (tmp_path / "cat.safetensors").exists()


def interrupt_at(step: int, error: BaseException) -> TrainHooks:
    def progress(now) -> None:
        if now.step == step:
            raise error

    return TrainHooks(progress=progress)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_a_partial_lora_is_named_by_its_step_and_the_final_name_appears_only_at_the_end(tmp_path, error) -> None:
    dataset, final = make_dataset(tmp_path / "set"), tmp_path / "runs/test/test.safetensors"
    with pytest.raises(type(error)):
        run_training(tmp_path, dataset, hooks=interrupt_at(3, error))
    assert not final.exists() and final.with_name("test-step00000003.safetensors").exists()
    asked = iter(range(100))
    stopped = run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(asked) == 1), mode="resume")
    assert stopped.lora == final.with_name("test-step00000004.safetensors")
    assert list(final.parent.glob("*.safetensors")) == [stopped.lora]
    assert run_training(tmp_path, dataset, mode="resume").lora == final
    assert list(final.parent.glob("*.safetensors")) == [final]


def stop_after(steps: int) -> TrainHooks:
    asked = iter(range(100))
    return TrainHooks(stop=lambda: next(asked) == steps)


@pytest.mark.parametrize("inside", [True, False], ids=["in the folder of the run", "elsewhere"])
def test_a_run_records_its_lora_and_removes_only_the_unfinished_one_that_it_replaces(tmp_path, inside) -> None:
    dataset, final = (
        make_dataset(tmp_path / "set"),
        tmp_path / ("runs/test" if inside else "loras") / "test.safetensors",
    )
    others = [final.with_name(name) for name in ("test-step00000001-2.safetensors", "best-step00000002.safetensors")]

    def trained(mode: str, hooks: TrainHooks | None = None, **settings) -> list[str]:
        config = TrainConfig(**{"steps": 4, "batch_size": 4, "rank": 2, **settings})
        with open_run(tmp_path / "runs", "test", mode) as run:
            train(SmallDenoiser(), dataset, config, run, final, hooks)
        for other in others:
            other.touch()
        recorded = read_run_json(run.folder)["lora"]
        assert recorded == str(Path(recorded).absolute()) and Path(recorded).exists()
        return [
            Path(recorded).name,
            *sorted({path.name for path in final.parent.glob("*.safetensors")} - {o.name for o in others}),
        ]

    partial = "test-step00000002.safetensors"
    assert trained("new", stop_after(2)) == [partial, partial]
    assert trained("resume") == [final.name, final.name]
    later = "test-step00000005.safetensors"
    assert trained("resume", stop_after(1), steps=6, accept_changes=True) == [later, later, final.name]
    kept = [] if inside else [final.name]  # a run clears its own folder; the LoRA elsewhere stays until it is replaced
    assert trained("overwrite", stop_after(2)) == [partial, partial, *kept]
    assert trained("overwrite") == [final.name, final.name]
    assert all(other.exists() for other in others)


def test_the_lora_of_a_run_that_is_overwritten_is_not_that_of_the_run_before(tmp_path) -> None:
    dataset, final = make_dataset(tmp_path / "set"), tmp_path / "loras" / "test.safetensors"
    recorded = []
    hooks = TrainHooks(progress=lambda now: recorded.append(read_run_json(tmp_path / "runs/test")["lora"]))
    for mode in ("new", "overwrite"):
        with open_run(tmp_path / "runs", "test", mode) as run:
            train(SmallDenoiser(), dataset, TrainConfig(steps=1, batch_size=4, rank=2), run, final, hooks)
    assert recorded == ["", ""]


def test_a_run_that_fails_in_its_first_step_saves_no_untrained_lora_and_gives_its_name_back(tmp_path) -> None:
    class Breaks(SmallDenoiser):
        def predict(self, *args):
            raise torch.OutOfMemoryError("out of memory, say")

    dataset = make_dataset(tmp_path / "set")
    with pytest.raises(RuntimeError, match="out of memory"):
        run_training(tmp_path, dataset, Breaks())
    assert not list((tmp_path / "runs").rglob("*.safetensors"))
    assert json.loads((tmp_path / "runs/test/run.json").read_text())["status"] == "failed"
    run_training(tmp_path, dataset)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["test"]
    assert json.loads((tmp_path / "runs/test/run.json").read_text())["status"] == "done"


def test_a_run_with_the_longest_name_can_be_stopped_and_resumed(tmp_path) -> None:
    name = "é" * 108  # 216 bytes
    dataset, asked, runs = make_dataset(tmp_path / "set"), iter(range(100)), tmp_path / "runs"
    small = {"steps": 4, "batch_size": 4, "rank": 2, "name": name}
    hooks = TrainHooks(stop=lambda: next(asked) == 2)
    result, run = train_in_run(
        SmallDenoiser(),
        dataset,
        TrainConfig(**small),
        runs,
        lambda run: run.lora,
        lambda run: nullcontext(hooks),
        decode,
    )
    assert result.stopped and result.lora.exists()
    config = TrainConfig(mode="resume", **small)
    done, _ = train_in_run(
        SmallDenoiser(), dataset, config, runs, lambda run: run.lora, lambda run: nullcontext(TrainHooks()), decode
    )
    assert done.step == 4 and done.lora == run.lora


def test_the_report_of_a_resumed_run_says_since_when_its_time_counts(tmp_path) -> None:
    dataset, asked = make_dataset(tmp_path / "set"), iter(range(100))
    run_training(tmp_path, dataset, hooks=TrainHooks(stop=lambda: next(asked) == 2))
    assert "<span>time</span>" in (tmp_path / "runs/test/report.html").read_text()
    run_training(tmp_path, dataset, mode="resume")
    assert "<span>time since step 2</span>" in (tmp_path / "runs/test/report.html").read_text()


def test_a_step_has_no_rows_of_prior_batches_in_its_reported_loss() -> None:
    own, prior = torch.tensor([1.0, 3.0, 50.0]), torch.tensor([70.0])
    assert float(plain_mean([(own, 2), (prior, 0)])) == 2.0
    assert float(plain_mean([(prior, 0)])) == 70.0


def test_an_old_run_does_not_change_its_batches_silently(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset)
    path = tmp_path / "runs/test/states/step-00000006.safetensors"
    state = read_state(path)
    del state.origin.config["batch_split"]  # as version 0.2 saved it
    StateFolder(path.parent).save(state)
    with pytest.raises(TrainError, match="batch_split: was 'even', is 'full'"):
        run_training(tmp_path, dataset, mode="resume", steps=9, batch_split="full")
    assert run_training(tmp_path, dataset, mode="resume", steps=9).step == 9


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_in_a_run_neither_blocks_a_resume_nor_breaks_it(tmp_path, kind: str) -> None:
    dataset, run = make_dataset(tmp_path / "set"), tmp_path / "runs/test"
    run_training(tmp_path, dataset, steps=4, sample_every=2, sample_steps=1)
    for name in ("report.html", "loss.png", "samples/step-00000009-0.png", "states/step-00000009.safetensors"):
        put_odd(kind, run / name)
    if kind != "folder":
        put_odd(kind, run / "metrics.jsonl")
    result = returns(lambda: run_training(tmp_path, dataset, mode="resume", steps=8, sample_every=2, sample_steps=1))
    assert result.step == 8 and result.lora.is_file()
    assert read_curves(run / "metrics.jsonl").losses[-1][0] == 8
    put_odd(kind, run / "metrics.jsonl") if kind == "folder" else None
    if kind == "folder":
        with pytest.raises(TrainError, match=r"metrics\.jsonl"):
            run_training(tmp_path, dataset, mode="resume", steps=9)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("part", ["states", "states/step-00000006.safetensors"])
def test_a_resume_is_refused_while_its_states_cannot_be_read(tmp_path, number: int, part: str, monkeypatch) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset)
    before = files_of(tmp_path / "runs")
    with monkeypatch.context() as patch:
        make_unreadable(patch, tmp_path / "runs/test" / part, number)
        with pytest.raises(TrainError, match=os.strerror(number)):
            run_training(tmp_path, dataset, mode="resume", steps=9)
    assert files_of(tmp_path / "runs") == before
    assert run_training(tmp_path, dataset, mode="resume", steps=9).step == 9


def test_a_full_disk_at_the_end_does_not_hide_why_a_run_failed(tmp_path, monkeypatch) -> None:
    def fail(progress) -> None:
        monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), hooks=TrainHooks(progress=fail))


@pytest.mark.parametrize(
    "settings",
    [
        {"multires_noise": 4, "input_perturbation": 0.1, "resolution_shift": "flux", "validation_share": 0.2},
        {"loss": "huber", "huber_schedule": "snr", "lora_plus": 4.0, "scale_weight_norms": 0.05},
        {"optimizer_args": {"amsgrad": True, "betas": (0.8, 0.9)}, "group_ranks": {"up": 3}, "group_alphas": {"up": 1}},
        {"guidance_target": 3.0, "guidance_schedule": "sigma", "preservation_weight": 0.5, "accumulate": 2},
    ],
    ids=["noise", "learning", "adapter", "captions"],
)
def test_j6_a_run_with_these_settings_resumes_bit_for_bit(tmp_path, settings: dict) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "whole", dataset, steps=10, **settings)
    run_training(tmp_path / "parts", dataset, steps=4, **settings)
    run_training(tmp_path / "parts", dataset, mode="resume", steps=10, **settings)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "parts"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_j6_every_step_has_its_learning_rate_and_gradient_norm(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    for clip in (1.0, 0.0):
        run_training(tmp_path / str(clip), dataset, lr_schedule="linear", clip_norm=clip)
    curves = [read_curves(tmp_path / str(clip) / "runs" / "test" / "metrics.jsonl") for clip in (1.0, 0.0)]
    assert [step for step, _ in curves[0].norms] == [step for step, _ in curves[0].rates] == list(range(1, 7))
    assert curves[0].norms[0] == pytest.approx(curves[1].norms[0]) and curves[0].norms[0][1] > 0
    assert (tmp_path / "1.0" / "runs" / "test" / "gradient_norm.png").exists()
