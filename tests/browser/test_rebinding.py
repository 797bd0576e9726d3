"""DNS rebinding in a real browser: a site whose name resolves to this machine reads and changes nothing."""

import pytest

from streamcache.tests.browser.chromium import OTHER_SITE, Chromium
from streamcache.tests.host.server import Server
from streamcache.tests.support.samples import write_cache

pytestmark = pytest.mark.browser
ASK = "fetch('/streamcache%s', %s).then(async (answer) => [answer.status, (await answer.json()).error ?? ''])"
POST = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({name: 'wanted'})}"


def test_a_site_whose_name_resolves_to_this_machine_is_refused(chromium: Chromium, server: Server):
    folder = write_cache(server.base / "output" / "streamcache" / "wanted", 2)
    port = server.address.rpartition(":")[2]
    with chromium.new_page() as page:
        page.open(f"http://{OTHER_SITE}:{port}/system_stats")  # which ComfyUI itself shows
        for request in (ASK % ("/caches", "{}"), ASK % ("/cache/delete", POST)):
            status, error = page.run(request)
            assert status == 403 and OTHER_SITE in error
        assert folder.exists()
        page.open(f"http://localhost:{port}/system_stats")
        assert page.run(ASK % ("/caches", "{}")) == [200, ""]
        assert page.run(ASK % ("/cache/delete", POST)) == [200, ""]
    assert not folder.exists()
