"""What an address is, and which are refused."""

import pytest

from streamcache.dataset_cache import Address, CacheError, LocalStorage, is_address, storage_at
from streamcache.dataset_cache.address import local_folder


def test_an_address_is_shown_as_it_was_typed_and_has_a_name_and_parts():
    address = Address.parse("s3://bucket/sets/my set")
    assert str(address) == "s3://bucket/sets/my set" and address.name == "my set"
    assert str(address / "shards/a") == "s3://bucket/sets/my set/shards/a"
    assert Address.parse("S3://bucket/a/") == Address.parse("s3://bucket/a")
    assert Address.parse("s3://bucket").name == "bucket" and str(Address.parse("s3://bucket") / "a") == "s3://bucket/a"


@pytest.mark.parametrize("text", ["C://data/set", "/data/set", "set", "file.txt", "C:/set", "my:set", "", "://a/b"])
def test_paths_are_no_addresses(text):
    assert not is_address(text) and isinstance(storage_at(text), LocalStorage)


@pytest.mark.parametrize("text", ["s3:/bucket/set", "s3:bucket/set", "S3:\\bucket/set", "https:/bucket/set"])
def test_an_address_with_a_slash_too_few_makes_no_folder(text):
    with pytest.raises(CacheError, match=r"(?i)looks like an address; expected (s3|https)://bucket/set, or a folder"):
        storage_at(text)


@pytest.mark.parametrize(
    "text",
    ["https://anna:hunter2@host/set", "https://hunter2@host/set?a=b", "https://host/set?X-Amz-Signature=hunter2",
     "https://host/set#hunter2", "s3://key:hunter2@bucket/set", "https://host/set#a?sig=hunter2",
     "https://anna:hunter2/ss@host/set", "https://anna:pa@hunter2/ss@host/set", "s3://anna:hunter2?ss@bucket/set",
     "https://anna:hunter2#ss@host/set"],
)  # fmt: skip
def test_f7_an_address_with_a_secret_is_refused_without_repeating_it(text):
    with pytest.raises(CacheError, match="leave that out, and give credentials in the environment") as raised:
        Address.parse(text)
    assert (
        "hunter2" not in str(raised.value)
        and "anna" not in str(raised.value)
        and "host/set" in str(raised.value).replace("bucket", "host")
    )


@pytest.mark.parametrize("text", ["https://anna:hunter2@host/set", "https:/anna:hunter2@host/set", "s3:a:hunter2@b/c"])
def test_f7_a_secret_where_only_a_folder_will_do_is_not_repeated(text):
    with pytest.raises(CacheError, match="give credentials in the environment") as raised:
        local_folder(text)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/set",
        "http://[::1]/set",
        "http://[::1]:9000/a:b",
        "hf://datasets/owner/name@v1",
        "s3://b/a@b:c",
    ],
)
def test_ports_and_other_signs_are_no_secrets(text):
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("host", ["host:hunter2", "host:", "[::1]:hunter2", "a:b:c"])
def test_what_is_behind_a_host_is_a_port(host):
    with pytest.raises(CacheError, match="user name or password") as raised:
        Address.parse(f"https://{host}/set")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3:///set", "s3://bucket//set", "s3://bucket/../other", "s3://bucket/a\nb", "s3://bucket/a\\b",
     "s3://bucket/%2e%2e/b", "s3://bucket/a/.%2E", "s3://bucket/a%2f..%2Fb", "s3://bucket/a%5cb"],
)  # fmt: skip
def test_malformed_addresses_are_refused(text):
    with pytest.raises(CacheError, match="s3://"):
        Address.parse(text)


def test_an_unknown_kind_of_address_is_refused():
    with pytest.raises(CacheError, match="ftp://host/set: no such kind of address; expected .*s3://"):
        storage_at("ftp://host/set")
