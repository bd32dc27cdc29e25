"""Messages, as a server on this machine receives them."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import runner_webhook
from runner_core import HealthEvent, Sinks
from runner_core.testing import train_toy
from runner_webhook import Config


@pytest.fixture
def server():
    class Listener(BaseHTTPRequestHandler):
        def do_POST(self):
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(self.server.answer)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    texts = []
    server = HTTPServer(("127.0.0.1", 0), Listener)
    server.texts, server.answer = texts, 200
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Toy:
    name, monitor = "toy", ("dice", "max")


def sinks(server, monkeypatch, tmp_path, said):
    monkeypatch.setenv("RUNNER_WEBHOOK", f"http://127.0.0.1:{server.server_port}/hook")
    return Sinks(runner_webhook.runner_sinks(Toy(), tmp_path / "run-7", Config()), said.append)


def test_start_findings_and_end_are_told(server, monkeypatch, tmp_path):
    said = []
    told = sinks(server, monkeypatch, tmp_path, said)
    told.event("start", 0, {"steps": 20})
    told.event("validation", 10, {"epoch": 0, "dice": 0.87654, "best": True, "timing": {"seconds": 1}})
    told.event("health", 10, {"level": "note", "rule": "precision", "message": "float32"})
    told.event("health", 10, {"level": "warning", "rule": "stalled", "message": "dice"})
    told.event("end", 20, {"status": "done"})
    told.close()
    assert server.texts == [
        "toy run-7: started: 20 steps",
        "toy run-7: warning at step 10: stalled: dice",
        "toy run-7: done at step 20; best: step 10, dice 0.8765",
    ]
    assert not said


def test_a_whole_run_is_told(server, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("RUNNER_WEBHOOK", f"http://127.0.0.1:{server.server_port}/hook")
    train_toy(tmp_path, "webhook", {"webhook.timeout": 5, "webhook.stalled_after": 1})
    assert server.texts[0] == "toy run: started: 12 steps"
    assert server.texts[-1].startswith("toy run: done at step 12; best: step 12, loss 0.")


def test_a_server_that_refuses_is_told_once(server, monkeypatch, tmp_path):
    said, server.answer = [], 500
    told = sinks(server, monkeypatch, tmp_path, said)
    for step in range(3):
        told.event("end", step, {"status": "done"})
    told.close()
    assert len(said) == 1
    assert "webhook failed" in said[0]
    assert "500" in said[0]


@pytest.mark.parametrize("address", ["chat.example.org/a-secret", "http://chat.example.org/a secret"])
def test_an_address_that_is_none_is_not_repeated(address, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNNER_WEBHOOK", address)
    said = []
    told = Sinks(runner_webhook.runner_sinks(Toy(), tmp_path, Config()), said.append)
    told.event("start", 0, {"steps": 20})
    told.close()
    assert len(said) == 1
    assert "RUNNER_WEBHOOK holds no address" in said[0]
    assert "secret" not in said[0]


def test_without_an_address_nothing_is_sent(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNNER_WEBHOOK", raising=False)
    assert runner_webhook.runner_sinks(Toy(), tmp_path, Config()) == []


def test_a_stalled_metric_is_found_once():
    (rule,) = runner_webhook.runner_health(Toy(), Config(stalled_after=10))
    values = [0.5, 0.6, *[0.6] * 12, 0.7]
    found = [rule.observe(HealthEvent("validation", step, 0, {"dice": v})) for step, v in enumerate(values)]
    assert [step for step, finding in enumerate(found) if finding] == [11]
