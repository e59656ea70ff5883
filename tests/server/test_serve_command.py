"""``pos-gateway serve`` as an operator meets it."""

import socket
import subprocess
from pathlib import Path

import pytest
import requests
import trustme
from cryptography.hazmat.primitives import serialization

from tests.cli.conftest import Program, on_terminal
from tests.server import preloaded
from tests.server.lab import SOON, migrated, order, serving


def refused(
    program: Program, *arguments: str, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """``pos-gateway serve`` to its end, forked from a process that has its modules."""
    log = program.folder / "refused.log"
    command = ("serve", *arguments)
    process = preloaded.start("pos_gateway", command, program.environment(settings), log)
    try:
        code = process.wait(SOON)
    finally:
        process.kill()
    said = log.read_text()
    assert "Traceback" not in said, said
    return subprocess.CompletedProcess(command, code, "", said)


def test_what_is_wrong_is_a_sentence(database_url: str, tmp_path: Path) -> None:
    settings = {"POS_GATEWAY_DATABASE_URL": database_url, "POS_GATEWAY_METRICS_PORT": "0"}
    program = Program(tmp_path, settings)
    missing = program.run("serve")
    assert missing.returncode == 1 and "db upgrade" in missing.stderr
    migrated(database_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = refused(program, "--port", port)
        assert (
            done.returncode == 1
            and f"port {port}: Address already in use; --port chooses" in done.stderr
        )
    done = refused(program, POS_GATEWAY_BROKER_URL="memory://")
    assert done.returncode == 1 and "no worker would get the orders" in done.stderr
    pem = tmp_path / "x.pem"
    pem.write_text("x")
    done = refused(program, "--port", "0", "--certificate", str(pem), "--key", str(pem))
    assert done.returncode == 1 and "--certificate and --key" in done.stderr
    assert refused(program, "--certificate", str(pem)).returncode == 2
    for host in ("", " "):
        done = refused(program, "--host", host, "--port", "0")
        assert done.returncode == 2 and "should be an address" in done.stderr
    done = refused(program, POS_GATEWAY_TRUSTED_PROXIES="10.0.0.1/8, proxy")
    assert done.returncode == 78 and "POS_GATEWAY_TRUSTED_PROXIES" in done.stderr


def test_an_encrypted_key_is_named_and_asked_for_no_passphrase(
    database_url: str, tmp_path: Path
) -> None:
    migrated(database_url)
    issued = trustme.CA().issue_cert("127.0.0.1")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"geheim"),
        )
    )
    settings = {"POS_GATEWAY_DATABASE_URL": database_url, "POS_GATEWAY_METRICS_PORT": "0"}
    program = Program(tmp_path, settings)
    flags = ("serve", "--port", "0", "--certificate", str(certificate), "--key", str(key))
    done = program.run(*flags)
    assert done.returncode == 1 and f"--key {key} is encrypted" in done.stderr
    shown = on_terminal(program, *flags)
    assert "is encrypted" in shown and "pass phrase" not in shown


def test_tls_by_flags(broker_url: str, database_url: str, tmp_path: Path, order_id: str) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key, trusted = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    flags = ("--certificate", str(certificate), "--key", str(key))
    migrated(database_url)
    with serving(
        broker_url, database_url, tmp_path / "log", None, *flags, is_ready=False
    ) as server:
        url = server.url.replace("http:", "https:") + "/v1/orders"
        headers = {"Authorization": f"Bearer {server.token}"}
        reply = requests.post(
            url, json=order(order_id), headers=headers, verify=str(trusted), timeout=SOON
        )
        assert reply.status_code in (202, 503)
        with pytest.raises(requests.ConnectionError):
            requests.get(server.url + "/healthz", timeout=SOON)
