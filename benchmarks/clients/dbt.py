"""dbt with its adapter for Spark: a seed, two models and tests, by ``dbt build``.

``session`` makes a session inside of dbt, as a Python program does; ``thrift`` uses a server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.clients.places import THRIFT, Place
from benchmarks.processes import BenchmarkError

__all__ = ["session", "thrift"]

_FILES = {
    "dbt_project.yml": """\
name: clients
version: "1.0"
profile: clients
flags: {send_anonymous_usage_stats: false}
models: {clients: {+file_format: parquet}}
""",
    "seeds/visits.csv": "page,seconds\nhome,3\nhome,5\ndocs,40\nblog,7\ndocs,20\n",
    "models/pages.sql": """\
{{ config(materialized="table") }}
select page, count(*) as visits, sum(seconds) as seconds
from {{ ref("visits") }} group by page
""",
    "models/longest.sql": """\
{{ config(materialized="view") }}
select * from {{ ref("pages") }} where seconds = (select max(seconds) from {{ ref("pages") }})
""",
    "models/schema.yml": """\
version: 2
models:
  - name: pages
    columns: [{name: page, data_tests: [unique, not_null]}]
""",
}
_ROWS = "select page, visits, seconds from {{ ref('pages') }} order by page"


def session(place: Place) -> dict[str, Any]:
    """Spark starts inside of dbt, twice."""
    return _build(place, {"method": "session", "host": "none"})


def thrift(place: Place) -> dict[str, Any]:
    """All of it by a Thrift server."""
    with place.serving(THRIFT) as (host, port):
        return _build(place, {"method": "thrift", "host": host, "port": port, "user": "tester"})


def _build(place: Place, target: dict[str, Any]) -> dict[str, Any]:
    """The states of ``dbt build``, and the rows of a model.

    Raises:
        BenchmarkError: dbt showed no rows.
    """
    project = place.directory / "project"
    for name, text in _FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    output = {"type": "spark", "schema": "clients", "threads": 1, **target}
    profiles = {"clients": {"target": "it", "outputs": {"it": output}}}
    (project / "profiles.yml").write_text(json.dumps(profiles))
    where = ("--project-dir", project, "--profiles-dir", project)
    place.run(["dbt", "build", *where])
    states = _states(project / "target" / "run_results.json")
    shown = place.run(["dbt", "--quiet", "show", *where, "--output", "json", "--inline", _ROWS])
    return {"states": states, "rows": rows(shown)}


def _states(path: Path) -> dict[str, str]:
    results = json.loads(path.read_text())["results"]
    return {each["unique_id"]: each["status"] for each in results}


def rows(shown: str) -> list[Any]:
    """The rows of ``dbt show --output json``, whatever stands around them.

    Raises:
        BenchmarkError: there are none.
    """
    begin = shown.find("{")
    while begin >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(shown[begin:])
            return list(found["show"])
        except (ValueError, KeyError):
            begin = shown.find("{", begin + 1)
    raise BenchmarkError(f"dbt showed no rows:\n{shown[-500:]}")
