"""The page at /: its files, headers and access, and what of it needs no browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from starlette.testclient import WebSocketDenialResponse

from app.gui.common.themes import DARK, LIGHT, Theme
from app.gui.common.turn_times import REPORTED_STAGES
from app.server.access import Access
from app.server.http_app import PATH
from app.server.web_page import FOLDER
from tests.app.server.test_http_app import KEY, server, until


def test_the_page_needs_no_key_and_loads_nothing_from_elsewhere() -> None:
    with server(access=Access((KEY,))) as rig:
        page = rig.client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(linked) > 2
        for path in (*linked, "audio_worklet.js"):
            assert "/" not in path, "relative: a proxy may serve it below a path"
            answer = rig.client.get(f"/{path}")
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert rig.client.head(f"/{path}").status_code == 200
        assert rig.client.get("/page/index.html").status_code == 404
        assert rig.client.post("/").status_code == 405


def test_the_page_may_load_and_run_its_own_files_only() -> None:
    with server() as rig:
        headers = rig.client.get("/").headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["referrer-policy"] == "no-referrer"
    text = "".join(file.read_text(encoding="utf-8") for file in FOLDER.iterdir())
    assert not re.findall(r"innerHTML|insertAdjacent|document\.write|eval\(|<style|style=|onclick=\"", text)


def test_the_page_is_not_served_to_a_name_that_leads_here() -> None:
    with server(access=Access().at("127.0.0.1")) as rig:
        assert rig.client.get("/", headers={"host": "evil.example"}).status_code == 421
        assert rig.client.get("/", headers={"host": "localhost:8000"}).status_code == 200


def test_the_page_may_connect_and_others_may_not() -> None:
    with server(access=Access().at("127.0.0.1")) as rig:
        host = {"host": "127.0.0.1:8000"}
        own = host | {"origin": "http://127.0.0.1:8000"}
        with rig.client.websocket_connect(PATH, headers=own) as socket:
            until(socket, "session.created")
        for origin in ("http://127.0.0.1:3000", "null", "http://", "http://127.0.0.1"):
            with (
                pytest.raises(WebSocketDenialResponse) as caught,
                rig.client.websocket_connect(PATH, headers=host | {"origin": origin}),
            ):
                pass
            assert caught.value.status_code == 403, origin


def test_it_is_part_of_a_wheel(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["app.server"]
    packaged = {file for pattern in patterns for file in FOLDER.parent.glob(pattern)}
    assert packaged == set(FOLDER.iterdir())


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_stages_have_the_colours_of_the_window(theme: Theme) -> None:
    light, _, dark = (FOLDER / "page.css").read_text(encoding="utf-8").partition("prefers-color-scheme: dark")
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", dark if theme.is_dark else light))
    for stage in REPORTED_STAGES:
        assert colours[stage.value] == theme.stages[stage]
    for name in ("window", "surface", "text", "muted", "accent", "danger"):
        assert colours[name] == getattr(theme, name)


def test_the_parts_of_the_page(repository: Path) -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed; test_web_page_in_browser.py runs the page")
    script = repository / "tests" / "app" / "server" / "page_parts.mjs"
    done = subprocess.run([node, script, FOLDER], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8
