"""Draws which server wrote to each shard, and how much each had to do, over time: an SVG for light and dark."""

import itertools

LEFT, TOP, WIDTH, ROW, HEIGHT = 72, 126, 840, 6, 120

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.quiet { fill: #6e7781 }
.mark, .axis { stroke: #57606a; stroke-width: 1 }
.mark { stroke-dasharray: 3 2 }
.paper { fill: #ffffff }
.a { color: #3b82d6 } .b { color: #e69f00 } .c { color: #26a079 } .d { color: #a06cd5 } .standby { color: #d0542c }
rect { fill: currentColor }
polyline { fill: none; stroke: currentColor; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .quiet { fill: #9198a1 }
  .mark, .axis { stroke: #b1bac4 }
  .paper { fill: #0d1117 }
}
"""


def draw(written, loads, groups, names, marks, began, ended):
    """A bar for each server that acknowledged rows of a shard, from the first row to the last; below, a line for the load
    of each server.

    The groups are ranges of shards that get a label, the names are those of servers, the marks what happened when.
    """
    rows = sorted(shard for group in groups for shard in group)
    bottom = TOP + ROW * len(rows)
    loads_top = bottom + 40
    loads_bottom = loads_top + HEIGHT

    def x(at):
        return LEFT + (at - began) / (ended - began) * WIDTH

    def y(shard):
        return TOP + ROW * rows.index(shard)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 28} {loads_bottom + 44}" role="img">'
    yield f"<style>{STYLE}</style>"
    yield '<rect class="paper" width="100%" height="100%"/>'
    title = "The server that each shard was written to on, and the load of each server"
    yield f'<text class="title" x="16" y="26">{title}</text>'
    for place, (server, name) in enumerate(names.items()):
        yield f'<rect class="{server}" x="{LEFT + 150 * place}" y="38" width="12" height="12" rx="2"/>'
        yield f'<text x="{LEFT + 150 * place + 18}" y="49">{name}</text>'

    for shard, of_shard in itertools.groupby(
        sorted(written, key=lambda one: (one.shard, one.at)), lambda one: one.shard
    ):
        for server, bar in itertools.groupby(of_shard, lambda one: one.server):
            bar = list(bar)
            since, until = x(bar[0].at), x(bar[-1].at)
            yield (
                f'<rect class="{server}" x="{since:.1f}" y="{y(shard)}"'
                f' width="{max(until - since, 1):.1f}" height="{ROW - 1}"/>'
            )
    for group in groups:
        middle = y(group[0]) + ROW * len(group) / 2 + 4
        yield f'<text class="quiet" x="{LEFT - 8}" y="{middle}" text-anchor="end">{group[0]} to {group[-1]}</text>'
    yield f'<text class="quiet" x="16" y="{bottom + 18}">Shards 0 to {rows[-1]}, a line each.</text>'

    yield from draw_loads(loads, x, loads_top, loads_bottom)

    # How far to the right each line of labels is taken.
    taken = [0] * len(marks)
    for at, what in marks:
        level = next(level for level, end in enumerate(taken) if end < x(at))
        taken[level] = x(at) + 7 * len(what)
        height = TOP - 52 + 14 * level
        yield f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{height - 10}" y2="{loads_bottom}"/>'
        yield f'<text x="{x(at) + 4:.1f}" y="{height}">{what}</text>'

    yield f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{loads_bottom}" y2="{loads_bottom}"/>'
    for second in range(0, int(ended - began) + 1, max(1, round((ended - began) / 10))):
        at = f"{x(began + second):.1f}"
        yield f'<line class="axis" x1="{at}" x2="{at}" y1="{loads_bottom}" y2="{loads_bottom + 4}"/>'
        yield f'<text class="quiet" x="{at}" y="{loads_bottom + 18}" text-anchor="middle">{second} s</text>'
    yield f'<text class="quiet" x="16" y="{loads_bottom + 38}">Ids per second of each server, by insta_ids.fleet().</text>'
    yield "</svg>"


def draw_loads(loads, x, top, bottom):
    """A line for each server. It breaks where the server was not there, or its shards changed meanwhile."""
    most = max(one.ids_per_s or 0 for one in loads)
    step = 10 ** (len(str(int(most))) - 1)
    for rate in range(0, int(most) + 1, step):
        at = bottom - rate / most * (bottom - top)
        yield f'<text class="quiet" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{rate:,}</text>'
    for server, of_server in itertools.groupby(sorted(loads, key=lambda one: one.server), lambda one: one.server):
        for is_known, part in itertools.groupby(of_server, lambda one: one.ids_per_s is not None):
            if is_known:
                points = (f"{x(one.at):.1f},{bottom - one.ids_per_s / most * (bottom - top):.1f}" for one in part)
                yield f'<polyline class="{server}" points="{" ".join(points)}"/>'
