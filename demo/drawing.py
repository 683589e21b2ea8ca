"""Draws which server wrote to each shard, over time: an SVG for light and dark."""

import itertools

LEFT, TOP, WIDTH, ROW = 72, 112, 840, 6

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.quiet { fill: #6e7781 }
.mark, .axis { stroke: #57606a; stroke-width: 1 }
.mark { stroke-dasharray: 3 2 }
.paper { fill: #ffffff }
.a { fill: #3b82d6 } .b { fill: #e69f00 } .c { fill: #26a079 } .standby { fill: #d0542c }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .quiet { fill: #9198a1 }
  .mark, .axis { stroke: #b1bac4 }
  .paper { fill: #0d1117 }
}
"""


def draw(written, groups, names, marks, began, ended):
    """A bar for each server that acknowledged rows of a shard, from the first row to the last.

    The groups are ranges of shards that get a label, the names are those of servers, the marks what happened when.
    """
    rows = sorted(shard for group in groups for shard in group)
    bottom = TOP + ROW * len(rows)

    def x(at):
        return LEFT + (at - began) / (ended - began) * WIDTH

    def y(shard):
        return TOP + ROW * rows.index(shard)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 28} {bottom + 44}" role="img">'
    yield f"<style>{STYLE}</style>"
    yield '<rect class="paper" width="100%" height="100%"/>'
    yield '<text class="title" x="16" y="26">The server that each shard was written to on</text>'
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

    level, last = 0, began
    for at, what in marks:
        # One below the other, if they are close.
        level = level + 1 if x(at) - x(last) < 160 else 0
        last = at
        height = TOP - 38 + 14 * level
        yield f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{height - 10}" y2="{bottom}"/>'
        yield f'<text x="{x(at) + 4:.1f}" y="{height}">{what}</text>'

    axis = bottom + 4
    yield f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{axis}" y2="{axis}"/>'
    for second in range(0, int(ended - began) + 1, max(1, round((ended - began) / 10))):
        at = f"{x(began + second):.1f}"
        yield f'<line class="axis" x1="{at}" x2="{at}" y1="{axis}" y2="{axis + 4}"/>'
        yield f'<text class="quiet" x="{at}" y="{axis + 18}" text-anchor="middle">{second} s</text>'
    yield f'<text class="quiet" x="16" y="{bottom + 38}">Shards 0 to {rows[-1]}, a line each.</text>'
    yield "</svg>"
