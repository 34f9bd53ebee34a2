"""packaging/SERVE.md and the files of Ray Serve: their commands and options are accepted."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from app.cli import build_parser
from tests.tools.client_conformance.clients import CLIENTS
from tests.tools.client_conformance.script import FEATURES


def test_every_command_of_the_page_is_accepted(repository: Path) -> None:
    page = (repository / "packaging" / "SERVE.md").read_text(encoding="utf-8")
    commands = re.findall(r"\.venv/bin/moss-voice [^\n#]*", page)
    assert len(commands) > 8
    for command in commands:
        try:
            build_parser().parse_args(shlex.split(command)[1:])
        except SystemExit:
            pytest.fail(f"the page shows `{command}`, which is not accepted")


def test_the_table_of_clients_is_that_of_the_tool(repository: Path) -> None:
    page = (repository / "packaging" / "SERVE.md").read_text(encoding="utf-8")
    section = page.partition("### Clients that were tried")[2].partition("\n#")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    assert len(header[1:]) == len(CLIENTS)
    for client, shown in zip(CLIENTS, header[1:], strict=True):
        name, version = re.sub(r"\[.*\]", "", client.packages[0]).replace("==", "@").rsplit("@", 1)
        assert shown.startswith(f"{name} {version}")
    assert [row[0] for row in rows] == list(FEATURES)
    for feature, *cells in rows:
        assert set(cells) <= {"ok", "-"}, feature


@pytest.mark.parametrize("name", ["ray_serve.yaml", "ray_service.yaml"])
def test_the_files_name_what_is_there(repository: Path, name: str) -> None:
    text = (repository / "packaging" / name).read_text(encoding="utf-8")
    (path,) = re.findall(r"import_path: (\S+)", text)
    module, _, function = path.partition(":")
    assert callable(getattr(import_module(module), function))
    (options,) = re.findall(r"^ +options: (.*)$", text, re.MULTILINE)
    assert build_parser().parse_args(["serve", *shlex.split(options)]).device == "cuda"
    replica = (repository / "app" / "server" / "ray_replica.py").read_text(encoding="utf-8")
    (deployment,) = re.findall(r"- name: (\S+)\n\s+(?:#.*\n\s+)*ray_actor_options", text)
    assert f'DEPLOYMENT = "{deployment}"' in replica


def test_the_cluster_of_kubernetes_is_closed(repository: Path) -> None:
    text = (repository / "packaging" / "ray_service.yaml").read_text(encoding="utf-8")
    service, policy, ingress = yaml.safe_load_all(text)
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len(groups) == 2
    for pod in (group["template"] for group in groups):
        assert pod["metadata"]["labels"] == policy["spec"]["podSelector"]["matchLabels"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    others = [rule for rule in policy["spec"]["ingress"] if "ports" in rule]
    assert all("namespaceSelector" in source for rule in others for source in rule["from"])
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert ingress["spec"]["tls"], "keys and speech cross the network"
