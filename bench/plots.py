"""Plots of bench.json. Each suits a light page and a dark one."""

import io
import json

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

# Of a light page and of a dark one.
COLOURS = {
    "text": ("#24292f", "#e6edf3"),
    "grid": ("#d0d7de", "#30363d"),
    "ours": ("#0969da", "#58a6ff"),
    "others": ("#8c959f", "#8b949e"),
}
TEXT, GRID, OURS, OTHERS = (light for light, _ in COLOURS.values())


def draw(results, directory):
    """Draws what there is in a bench.json: calls.svg, inserts.svg and sessions.svg."""
    results = json.loads(results.read_text())
    run = results["run"]
    tables = {}
    for table in results["tables"]:
        tables.setdefault(table["part"], []).append(table)
    caption = f"insta_ids {run['insta_ids']}, PostgreSQL {run['postgresql']}, {run['cores']} cores, {run['date']}"
    # Text stays text, and equal figures give equal files.
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "insta_ids", "font.family": "sans-serif", "font.size": 10}
        | {key: TEXT for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
        | {"axes.edgecolor": GRID, "grid.color": GRID}
    )
    for part, plot in (("calls", bars), ("inserts", bars), ("sessions", lines)):
        if part not in tables:
            continue
        figure = plot(tables[part])
        figure.text(0.995, 0.01, caption, ha="right", va="bottom", fontsize=7)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
        (directory / f"{part}.svg").write_text(adapt(drawn.getvalue()))


def adapt(svg):
    """Colours become those of the page that shows the plot."""
    of = {which: " ".join(f"--{name}: {pair[which]};" for name, pair in COLOURS.items()) for which in (0, 1)}
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    style = f":root {{ {of[0]} }} @media (prefers-color-scheme: dark) {{ :root {{ {of[1]} }} }}"
    return svg.replace("</style>", f" {style}</style>", 1)


def plain(name):
    return name.replace("`", "")


def bars(tables):
    """A panel for each table, with a bar for each figure, the shortest on top, and its spread."""
    most = max(len(table["figures"]) for table in tables)
    figure, panels = plt.subplots(1, len(tables), figsize=(9, 0.8 + 0.32 * most), squeeze=False, sharey=True)
    order = sorted(tables[0]["figures"], key=lambda one: -one["median"])
    for panel, table in zip(panels[0], tables):
        figures = {one["name"]: one for one in table["figures"]}
        shown = [figures[one["name"]] for one in order]
        medians = [one["median"] for one in shown]
        spread = [
            [m - min(one["samples"]) for m, one in zip(medians, shown)],
            [max(one["samples"]) - m for m, one in zip(medians, shown)],
        ]
        colours = [OURS if "next_id" in one["name"] else OTHERS for one in shown]
        panel.barh(
            [plain(one["name"]) for one in shown],
            medians,
            xerr=spread,
            color=colours,
            error_kw={"ecolor": TEXT, "elinewidth": 0.8},
        )
        panel.set_xlabel(table["unit"])
        panel.set_title(plain(table["title"]), fontsize=10)
        panel.grid(axis="x")
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def lines(tables):
    """A line for each way, over the number of sessions."""
    figure, panel = plt.subplots(figsize=(9, 4))
    ways = {}
    for one in tables[0]["figures"]:
        way, _, count = one["name"].rpartition(", ")
        ways.setdefault(way, []).append((int(count.split()[0]), one["median"]))
    styles = iter(["o-", "o--", "s-", "s--", "^-", "^--"])
    for way, points in ways.items():
        colour = OURS if "next_id" in way else OTHERS
        panel.plot(*zip(*points), next(styles), color=colour, label=plain(way))
    counts = sorted({count for points in ways.values() for count, _ in points})
    panel.set_xscale("log", base=2)
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.set_xlabel("sessions at once")
    panel.set_ylabel(tables[0]["unit"])
    panel.set_ylim(bottom=0)
    panel.set_title(plain(tables[0]["title"]), fontsize=10)
    panel.grid()
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure
