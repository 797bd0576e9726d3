"""Where credentials for S3 come from."""

import pytest

from streamcache.dataset_cache import CacheError, open_cache, storage_at
from streamcache.dataset_cache.remote.aws import aws_options
from streamcache.dataset_cache.remote.faults import NO_CREDENTIALS, Fault
from streamcache.dataset_cache.remote.roots import Options

from ...support.remote_servers import BUCKET

KEYS = {"access_key_id": "key", "secret_access_key": "secret"}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    credentials.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = secret\n[empty]\n")
    keys = "aws_access_key_id = other\naws_secret_access_key = hidden\naws_session_token = token\n"
    config.write_text(f"[profile studio]\nregion = eu-central-1\nendpoint_url = https://minio\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))


def test_without_anything_in_the_environment_the_default_profile_counts():
    assert aws_options(Options()) == {**KEYS, "region": "us-east-1"}


def test_a_profile_brings_keys_region_and_endpoint(monkeypatch):
    studio = {"access_key_id": "other", "secret_access_key": "hidden", "session_token": "token"}
    expected = {**studio, "region": "eu-central-1", "endpoint": "https://minio"}
    assert aws_options(Options(profile="studio")) == expected
    monkeypatch.setenv("AWS_PROFILE", "studio")
    assert aws_options(Options()) == expected
    assert aws_options(Options(endpoint="http://own", region="x"))["endpoint"] == "http://own"


def test_the_environment_comes_before_the_default_profile_and_is_left_to_the_store(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert aws_options(Options()) == {"region": "eu-west-1"}


def test_a_public_place_wants_no_keys():
    assert aws_options(Options(anonymous=True)) == {"region": "us-east-1"}


def test_a_profile_without_keys_is_said(monkeypatch, s3):
    with pytest.raises(Fault) as raised:
        aws_options(Options(profile="missing"))
    assert raised.value.kind == NO_CREDENTIALS
    monkeypatch.setenv("AWS_PROFILE", "empty")
    with pytest.raises(CacheError, match="no credentials were found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"):
        open_cache(f"s3://{BUCKET}/with-an-empty-profile")


def test_keys_of_a_profile_open_a_store(monkeypatch, s3, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    storage = storage_at(f"s3://{BUCKET}/{tmp_path.name}")
    storage.replace("file", b"abc")
    assert storage.list() == ["file"]


def test_f7_without_credentials_one_sentence_says_which_are_looked_for(monkeypatch, s3, tmp_path):
    """The machine's role is asked for on loopback, where there is none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{s3}/no-role")
    with pytest.raises(CacheError, match="no credentials were found; set AWS_PROFILE, .* or mark a public place as"):
        open_cache(f"s3://{BUCKET}/{tmp_path.name}")


def test_the_endpoint_of_a_profile_may_be_a_plain_server(monkeypatch, s3, s3_address, tmp_path):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = http://{s3_address}\n")
    storage = storage_at(f"s3://{BUCKET}/{tmp_path.name}-plain")
    storage.replace("file", b"abc")
    assert storage.list() == ["file"]
