"""``hrm policy``: state and mode of learned policies, their training, and co-run scores.

``show``, ``shadow`` and ``set`` call the master's PolicyService; ``train`` runs a trainer of
``hrm.learn`` here, on this machine, and ``score`` reads a table of measured co-runs.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm.cli import client, console, queries
from hrm.cli.console import Output, plain
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption
from hrm.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hrm.v1 import policy_pb2

__all__ = ["app", "ordered_view", "policies_view", "policy_view", "shadow_view"]

app = typer.Typer(no_args_is_help=True)
policy_group = typer.Typer(
    no_args_is_help=True, help="Learned policies: show, set their mode, train, compare scores."
)
app.add_typer(policy_group, name="policy")

_OF_PACKAGES = frozenset({"placement", "resizing"})
"""Kinds of candidates: what an application is placed or sized by, from a package."""
_OF_NODES = frozenset({"node", "shared-gpu"})
"""Kinds of which workers and agents report the counters."""
_TRAINERS = {
    "ldwp": "hrm.learn.ldwp",
    "ldwp-set": "hrm.learn.ldwp_set",
    "rlpto": "hrm.learn.ppo",
}
_NO_MODEL = "none"
"""As guards say it that have none (``hrm.policies.elasticity.guarded``)."""
NODES_SHOWN = 8
_MANY_RUNS = 2_000
"""Sets in a table of co-runs that take long to rank."""
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The policy's name; `hrm policy show` lists them.")
]


@policy_group.command()
def show(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One policy; default: all.")] = "",
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show the learned policies in use, with mode, counters and fallbacks, and the models at
    hand."""
    response = _shown(name, master, timeout, records=False)
    if not response.policies and output is Output.TABLE:
        console.note(
            "no learned policy is in use, by the master or by a node; to use one, set "
            "pipeline_policy of the master (ldwp, ldwp-set) or of agents (iawp, dqngpu), or, "
            "for containers and for the number of workers, placement_candidate and "
            "pipeline_resize_candidate of the master, or, for the executors of trainings, its "
            "elasticity_policy (rlpto); to train one: hrm policy train"
        )
    queries.show(response, output, lambda _: policies_view(response))


@policy_group.command()
def shadow(
    name: NameArgument,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Show what a policy would have done in shadow mode, next to what was done."""
    response = _shown(name, master, timeout, records=True)
    if any(policy.kind in _OF_NODES for policy in response.policies):
        console.note(f"nodes report counters alone: hrm policy show {name}")
    elif not any(policy.records for policy in response.policies) and output is Output.TABLE:
        console.note(
            f"no records of yours yet; hrm policy set {name} shadow records its decisions, and "
            f"operators see everybody's"
        )
        return
    queries.show(response, output, lambda _: shadow_view(response))


@policy_group.command(name="set")
def set_mode(
    name: NameArgument,
    mode: Annotated[
        str, typer.Argument(help="off, shadow, canary-1, canary-10, canary-50 (%) or on.")
    ],
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Set the share of decisions of a learned policy; its heuristic makes the others."""
    from hrm.v1.policy_pb2 import SetPolicyModeRequest

    request = SetPolicyModeRequest(policy=name, mode=mode)
    with client.connect(master) as connection:
        response = connection.policies.SetPolicyMode(request, timeout=timeout)
    view = ordered_view if response.nodes else policy_view
    queries.show(response, output, lambda _: view(response))


@policy_group.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="ldwp, ldwp-set or rlpto.")
    ] = "ldwp-set",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Default: NAME-VERSION.npz, here."),
    ] = None,
    version: Annotated[
        int, typer.Option("--version", min=0, help="Of the model; greater ones win.")
    ] = 3,
    from_shadow: Annotated[
        Path | None,
        typer.Option(
            "--from-shadow",
            metavar="FILE",
            help="Fine-tune ldwp-set with placements that a master has logged: "
            "policies/ldwp-set.placements.npz of its state directory.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Train a policy on this machine. All other options, with their defaults: python -m
    hrm.learn.ldwp_set --help, of ldwp: hrm.learn.ldwp, of rlpto: hrm.learn.ppo."""
    path = out or Path(f"{name}-{version}.npz")
    words = ["--out", str(path), "--version", str(version), *context.args]
    if from_shadow is not None:
        if name != "ldwp-set":
            raise InvalidRequest(f"--from-shadow: {name} keeps no log of placements")
        words += ["--from-shadow", str(from_shadow)]
    result = _trained(name, words)
    if output is Output.JSON:
        console.print_json(result)
        return
    if "summary" in result:
        console.view(result["summary"])
        return
    if "tuned" in result:
        tuned = result["tuned"]
        console.view(
            f"{result['model']} in {path}, from {tuned['from']} and {tuned['placements']} "
            f"placements: error on the later ones {tuned['before']:.4f} before, "
            f"{tuned['after']:.4f} after"
        )
        return
    best, ect = result["best"], result["ect"]
    console.view(
        f"{result['model']} in {path}: mean response {best['response_mean_s']:.1f} s on validation "
        f"seeds, ect's is {ect['response_mean_s']:.1f} s"
    )


def _trained(name: str, words: list[str]) -> dict[str, Any]:
    if name not in _TRAINERS:
        raise InvalidRequest(f"nothing trains {name!r}; name one of {', '.join(_TRAINERS)}")
    try:
        trainer = importlib.import_module(_TRAINERS[name])
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"training needs PyTorch and Gymnasium ({error}); install them: "
            f"pip install 'hrm-spark[learn]'"
        ) from error
    args = trainer.parse(words)
    result: dict[str, Any] = _with_progress(lambda on_progress: trainer.train(args, on_progress))
    return result


@policy_group.command()
def score(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A directory with jobs.csv and runs.csv: measured co-runs."
        ),
    ],
    resamples: Annotated[
        int, typer.Option("--resamples", min=10, max=100_000, help="For the intervals.")
    ] = 400,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the halves that are seen, and of resamples.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how well each co-run score ranks measured co-runs on a GPU, and what choosing by it
    loses."""
    from hrm.cli.corun_scores import document, view
    from hrm.pipelines.policies.corun import SCORES
    from hrm.pipelines.policies.corun.corun_table import read_table
    from hrm.pipelines.policies.corun.score_quality import qualities

    table = read_table(data)
    if len(table.runs) >= _MANY_RUNS:
        console.note(
            f"{len(table.runs):,} sets of jobs: this takes a while; fewer --resamples help"
        )
    found = _with_progress(
        lambda on_progress: qualities(
            table, SCORES, resamples=resamples, seed=seed, on_progress=on_progress
        )
    )
    if as_json or output is Output.JSON:
        console.print_json(document(table, found))
        return
    if not table.features:
        console.note("jobs.csv has no features: only what was seen of co-runs can rank them")
    console.view(view(found))


def _with_progress(work: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    shown = TextColumn("{task.description}")
    with Progress(
        *columns, shown, console=console.stderr(), disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("beginning", total=1.0)
        return work(lambda share, doing: bar.update(task, completed=share, description=doing))


def _shown(
    name: str, master: str | None, timeout: float, *, records: bool
) -> policy_pb2.ShowPoliciesResponse:
    from hrm.v1.policy_pb2 import ShowPoliciesRequest, ShowPoliciesResponse

    request = ShowPoliciesRequest(policy=name, records=records)
    with client.connect(master) as connection:
        response = connection.policies.ShowPolicies(request, timeout=timeout)
    assert isinstance(response, ShowPoliciesResponse)
    return response


def policies_view(response: policy_pb2.ShowPoliciesResponse) -> RenderableType:
    """All policies, and the models at hand."""
    from rich.console import Group

    files = [f"model {plain(f.kind)}-{f.version}: {plain(f.path)}" for f in response.models]
    return Group(*(policy_view(policy) for policy in response.policies), *files)


def policy_view(policy: policy_pb2.LearnedPolicy) -> RenderableType:
    """One policy: its mode, its decisions, and the reasons of its fallbacks."""
    from rich.console import Group

    at = f"node {policy.node}" if policy.node else ""
    where = at if at and policy.kind == "node" else ", ".join(x for x in (policy.kind, at) if x)
    made_of = "from" if policy.kind in _OF_PACKAGES else "with model"
    lines = [
        f"[bold]{plain(policy.policy)}[/] ({plain(where)}) is {plain(policy.mode)}, {made_of} "
        f"{plain(policy.model)}; else {plain(policy.heuristic)} decides",
        f"  {policy.asked} decisions requested, {policy.learned} made, {policy.shadowed} in shadow "
        f"({policy.proposed} proposed, {_share(policy.agreed, policy.proposed)} agreed)",
    ]
    if policy.fallbacks:
        counts = sorted(policy.fallbacks.items(), key=lambda item: (-item[1], item[0]))
        lines.append("  fell back: " + ", ".join(f"{plain(reason)} {n}" for reason, n in counts))
    if policy.model == _NO_MODEL:
        name = plain(policy.policy)
        lines.append(
            f"  without a model {plain(policy.heuristic)} decides alone; hrm policy train {name} "
            f"makes one, for the directory models below the master's state directory, from where "
            f"the next start takes it"
        )
    if policy.last:
        lines.append(f"  last: {plain(policy.last)}")
    if policy.HasField("breaker_s"):
        lines.append(f"  [yellow]too slow: disabled for another {policy.breaker_s:.0f} s[/]")
    if policy.HasField("seconds_p50"):
        lines.append(
            f"  decides in {1e3 * policy.seconds_p50:.2f} ms (p50), "
            f"{1e3 * policy.seconds_p99:.2f} ms (p99)"
        )
    if policy.kind == "placement":
        lines.append(_fared(policy))
    elif policy.HasField("ratio_p95") and policy.HasField("reference_p95"):
        lines.append(
            f"  response over expectation, p95: {policy.ratio_p95:.2f}; "
            f"{plain(policy.heuristic)}'s: {policy.reference_p95:.2f}"
        )
    if policy.HasField("rolled_back_at_s"):
        ago_s = max(0.0, time.time() - policy.rolled_back_at_s)
        why = f": {plain(policy.rolled_back_why)}" if policy.rolled_back_why else ""
        lines.append(f"  [red]rolled back {ago_s:.0f} s ago[/]{why}")
        lines.append(f"  hrm policy set {plain(policy.policy)} canary-1 tries it again")
    return Group(*lines)


def _fared(policy: policy_pb2.LearnedPolicy) -> str:
    """How containers fared that each of the two has placed."""

    def side(name: str, many: int, numbers: str) -> str:
        mean, p95 = numbers + "_mean", numbers + "_p95"
        known = policy.HasField(mean) and policy.HasField(p95)
        ratios = f"{getattr(policy, mean):.2f}, p95 {getattr(policy, p95):.2f}" if known else "-"
        return f"{ratios} ({many} by {plain(name)})"

    candidate = side(policy.policy, policy.compared, "ratio")
    heuristic = side(policy.heuristic, policy.reference_compared, "reference")
    return f"  containers' wait over expectation, mean: {candidate}; {heuristic}"


def ordered_view(policy: policy_pb2.LearnedPolicy) -> RenderableType:
    """The mode that was sent to the nodes; each applies it on its own."""
    count = len(policy.nodes)
    shown = ", ".join(plain(name) for name in policy.nodes[:NODES_SHOWN])
    more = f" and {count - NODES_SHOWN} more" if count > NODES_SHOWN else ""
    return (
        f"[bold]{plain(policy.policy)}[/] ({plain(policy.kind)}) is ordered to mode "
        f"'{plain(policy.mode)}' on {count} node{'' if count == 1 else 's'}: {shown}{more}\n"
        f"  hrm policy show {plain(policy.policy)} shows the mode of each"
    )


def shadow_view(response: policy_pb2.ShowPoliciesResponse) -> RenderableType:
    """Decisions in shadow mode, latest last."""
    kinds = {policy.kind in _OF_PACKAGES for policy in response.policies}
    first = "APPLICATION" if kinds == {True} else "TASK"
    table = console.table(first, "SAME", "DONE", "LEARNED")
    for policy in response.policies:
        for record in policy.records:
            learned = plain(record.learned) if record.learned else f"- ({plain(record.reason)})"
            same = ("yes" if record.same else "no") if record.learned else "-"
            table.add_row(plain(record.key), same, plain(record.heuristic), learned)
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
