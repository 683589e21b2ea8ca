"""Prometheus and its exporter watch a server: all that the dashboard shows is there, and an alert fires.

Arguments: the directories of the server's socket, and of what this writes. The server has a shard whose schema is gone.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

SERVER, RESULTS = map(pathlib.Path, sys.argv[1:])
MONITORING = pathlib.Path(__file__).parents[2] / "docs/monitoring"
PATIENCE_S = 60
# What a healthy server has none of.
MAY_BE_EMPTY = "insta_ids_move_"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(name, *arguments, **environment):
    log = (RESULTS / f"{name}.log").open("w")
    return subprocess.Popen(
        [name, *arguments], env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT
    )


def until(what, question):
    """Asks until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if answer := question():
                return answer
        except urllib.error.URLError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"no {what} within {PATIENCE_S} s; see the logs in {RESULTS}")


def get(path, **query):
    url = f"http://127.0.0.1:{PORT}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def firing():
    return {
        alert["labels"]["alertname"]: alert["annotations"]["summary"]
        for alert in get("alerts")["alerts"]
        if alert["state"] == "firing"
    }


def expressions():
    """Those of the dashboard, for all nodes."""
    text = (MONITORING / "dashboard.json").read_text()
    for panel in json.loads(text)["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$instance", ".*").replace("$__rate_interval", "30s")


PORT, EXPORTER_PORT = free_port(), free_port()
config = RESULTS / "prometheus.yml"
config.write_text(
    f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{MONITORING}/alerts.yaml]
scrape_configs:
  - job_name: insta_ids
    static_configs: [{{targets: ['127.0.0.1:{EXPORTER_PORT}']}}]
"""
)
running = [
    start(
        "prometheus-postgres-exporter",
        f"--extend.query-path={MONITORING}/queries.yaml",
        f"--web.listen-address=127.0.0.1:{EXPORTER_PORT}",
        DATA_SOURCE_NAME=f"host={SERVER} user=prometheus dbname=postgres",
    ),
    start(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={RESULTS}/data",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ),
]
try:
    summary = until("alert", lambda: firing().get("InstaIdsError"))
    if not re.search(r"finds missing_schema, findings: 1$", summary):
        raise SystemExit(f"another alert than expected: {summary}")
    for expression in expressions():
        until(f"answer to {expression}", lambda: get("query", query=expression)["result"] or MAY_BE_EMPTY in expression)
    print(summary)
finally:
    for program in running:
        program.terminate()
    for program in running:
        program.wait()
