"""Stock nodes of the real ComfyUI give the same results on lazy data as on data in memory."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.stock_nodes import CASES

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("stock_nodes")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_works_in_the_hosts_python(outcome: dict, family: str) -> None:
    cache = outcome["families"][family]["cache"]
    assert cache == {"stored": None, "batch": None, "buckets": [1, 2]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_c3_stock_nodes_return_the_same_for_lazy_and_eager_data(outcome: dict, family: str, case: str) -> None:
    result = outcome["families"][family]["cases"][case]
    assert result["error"] is None, result["error"]
    assert result["difference"] is None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_c7_stock_nodes_leave_lazy_data_lazy(outcome: dict, family: str, case: str) -> None:
    assert outcome["families"][family]["cases"][case]["kept"] == 0
