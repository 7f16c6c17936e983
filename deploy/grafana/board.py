"""What a dashboard of ours is, and how it becomes Grafana's JSON.

A dashboard is declared as rows of panels, a panel as what it shows, in which unit and why. Grafana's own library makes the
JSON of it: places, identifiers, defaults. So the declarations are what is reviewed, and the JSON is made (`make dashboards`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, StackingConfig, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

COLUMNS: Final = 24
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Args:
        title: what it shows.
        unit: of its values, by Grafana's name.
        why: what a person sees in it, and when to worry.
        queries: PromQL, with what the legend says of each series.
        kind: lines over time, one number, or a heat map of a histogram's buckets.
        width: of 24 columns; as the row's other panels need where it is not said.
        names: what a number is called, of values that stand for a state.
        bad_from: the value from which the number is red; the panel is green below.
        good_from: the value from which the number is green; the panel is red below.
        stacked: whether the series add up to something.
        highest: the upper end of the axis, where there is one.
        below_zero: whether the axis goes below 0, where that says something.
        empty_because: why a healthy cluster may have no data for it; nothing if it always has.
    """

    title: str
    unit: str
    why: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "lines"
    width: int = 8
    names: tuple[tuple[int, str, str], ...] = ()
    bad_from: float | None = None
    good_from: float | None = None
    stacked: bool = False
    highest: float | None = None
    below_zero: bool = False
    empty_because: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """What a person chooses at the top: the values of a label."""

    name: str
    title: str
    metric: str
    label: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: its rows, from the top. `name` is the file's; with `ottla-` before it the uid, which links hold for ever."""

    name: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[Variable, ...] = ()

    @property
    def uid(self) -> str:
        return f"ottla-{self.name}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


NAMESPACE: Final = Variable("namespace", "Namespace", "ottla_build_info", "namespace")
CLUSTER: Final = Variable("job", "Cluster", 'ottla_build_info{namespace=~"$namespace"}', "job", several=False)
BROKER: Final = Variable("broker", "Broker", 'ottla_build_info{job="$job"}', "instance")


def of_cluster(expression: str) -> str:
    """A declared expression as it is asked: the cluster is its job and, as Kubernetes may have that name twice, its namespace."""
    return expression.replace('job="$job"', 'namespace=~"$namespace", job="$job"')


def json_of(board: Board) -> str:
    """The file that Grafana reads."""
    builder = (
        dashboards.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["ottla"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .link(
            dashboards.DashboardLink("Ottla")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["ottla"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(
            dashboards.AnnotationQuery()
            .name("Broker started")
            .datasource(SOURCE)
            .enable(True)
            .icon_color("blue")
            .expr(of_cluster('changes(ottla_broker_start_time_seconds{job="$job"}[1m]) > 0'))
        )
    )
    asked = any("$broker" in expression for panel in board.panels for expression, _ in panel.queries)
    for variable in (NAMESPACE, CLUSTER, *((BROKER,) if asked else ()), *board.variables):
        builder.with_variable(_variable(variable))
    identifiers = count(1)
    for title, panels in board.rows:
        builder.with_row(dashboards.Row(title).id(next(identifiers)))
        for panel in panels:
            builder.with_panel(_panel(panel).id(next(identifiers)))
    text = json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
    return f"{text}\n"


def _variable(variable: Variable) -> dashboards.QueryVariable:
    built = (
        dashboards.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(SOURCE)
        .query(f"label_values({of_cluster(variable.metric)}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .hide(VariableHide.DONT_HIDE)
        .multi(variable.several)
        .include_all(variable.several)
    )
    # Rather than all the names with a | between, which can be longer than a request may be.
    if variable.several:
        built.all_value(".*").current(VariableOption(text="All", value="$__all", selected=True))
    return built


def _query(panel: Panel, expression: str, legend: str, letter: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(of_cluster(expression)).legend_format(legend).ref_id(letter).datasource(SOURCE)
    if panel.kind == "heat":
        query.format(PromQueryFormat.HEATMAP)
    return query.instant() if panel.kind == "number" else query.range()


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    built: timeseries.Panel | stat.Panel | heatmap.Panel
    if panel.kind == "number":
        built = stat.Panel().height(4).reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).thresholds(_thresholds(panel))
        if panel.names:
            built.mappings(
                [ValueMap(options={str(value): ValueMappingResult(text=text, color=color)}) for value, text, color in panel.names]
            )
    elif panel.kind == "heat":
        # Grafana formats its buckets by the axis' unit alone.
        built = heatmap.Panel().height(8).hide_legend().y_axis(heatmap.YAxisConfig().unit(panel.unit))
    else:
        built = (
            timeseries.Panel()
            .height(8)
            .line_width(1)
            .fill_opacity(30 if panel.stacked else 8)
            .show_points(VisibilityMode.NEVER)
            .legend(VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True))
            .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        )
        if not panel.below_zero:
            built.min(0)
        if panel.stacked:
            built.stacking(StackingConfig().mode(StackingMode.NORMAL))
        if panel.highest is not None:
            built.max(panel.highest)
        if panel.names:
            built.mappings([ValueMap(options={str(value): ValueMappingResult(text=text)}) for value, text, _ in panel.names])
    built.title(panel.title).description(panel.why).unit(panel.unit).span(panel.width).datasource(SOURCE)
    for number, (expression, legend) in enumerate(panel.queries):
        built.with_target(_query(panel, expression, legend, chr(ord("A") + number)))
    return built


def _thresholds(panel: Panel) -> dashboards.ThresholdsConfig:
    steps = [Threshold(value=None, color="blue")]
    if panel.bad_from is not None:
        steps = [Threshold(value=None, color="green"), Threshold(value=panel.bad_from, color="red")]
    elif panel.good_from is not None:
        steps = [Threshold(value=None, color="red"), Threshold(value=panel.good_from, color="green")]
    return dashboards.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
