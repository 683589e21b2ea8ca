"""Figures: samples of several rounds, what they are compared with, and how they are shown."""

import json
import statistics
from dataclasses import dataclass, field


@dataclass
class Figure:
    """What was measured of one case: a sample of each round, in the unit of its table."""

    name: str
    of: str | None = None
    samples: list[float] = field(default_factory=list)


@dataclass
class Table:
    """The figures of a part of the bench, in one unit. A round measures each of them once, so samples of one round were
    taken next to each other: ratios are of those, and the median of the ratios is shown."""

    part: str
    title: str
    unit: str
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name, sample, of=None):
        self.figures.setdefault(name, Figure(name, of)).samples.append(sample)

    def ratios(self, figure):
        base = self.figures.get(figure.of)
        return [a / b for a, b in zip(figure.samples, base.samples) if b > 0] if base else []

    def as_json(self):
        shown = []
        for figure in self.figures.values():
            one = {"name": figure.name, "median": statistics.median(figure.samples), "samples": figure.samples}
            if ratios := self.ratios(figure):
                one |= {"of": figure.of, "ratio": statistics.median(ratios), "ratios": ratios}
            shown.append(one)
        return {"part": self.part, "title": self.title, "unit": self.unit, "figures": shown, "notes": self.notes}


def markdown(table):
    """A table, as as_json has it, the way the documentation quotes it."""
    lines = [f"{table['title']}:", "", f"| | {table['unit']} | min to max | ratio | of |", "|---|---|---|---|---|"]
    for figure in table["figures"]:
        samples = figure["samples"]
        spread = f"{number(min(samples))} to {number(max(samples))}" if len(samples) > 1 else ""
        ratio = f"{figure['ratio']:.2f}" if "ratio" in figure else ""
        lines.append(
            f"| {figure['name']} | {number(figure['median'])} | {spread} | {ratio} | {figure.get('of', '')} |"
        )
    return "\n".join(lines + [""] + [line for note in table["notes"] for line in (note, "")])


def described(run):
    """What all figures of a run are of."""
    settings = ", ".join(f"`{name}` = {setting}" for name, setting in run["settings"].items())
    return (
        f"insta_ids {run['insta_ids']}, PostgreSQL {run['postgresql']}, {run['cores']} cores, {run['date']}; {settings}.\n"
    )


def book(run, tables):
    """All tables of a run as a page, a chapter for each part of the bench."""
    lines = ["# Tables of the bench", "", described(run)]
    parts = dict.fromkeys(table["part"] for table in tables)
    for part in parts:
        lines += [f"## {part}", ""]
        lines += [markdown(table) for table in tables if table["part"] == part]
    return "\n".join(lines).rstrip() + "\n"


def number(value):
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def counted(count, noun):
    """As 1 session, 20,000 sequences."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def save(directory, run, tables):
    """Writes bench.json, with a line for each figure, so that a diff shows what changed between two runs, and tables.md."""
    directory.mkdir(parents=True, exist_ok=True)
    tables = [table.as_json() for table in tables]
    (directory / "tables.md").write_text(book(run, tables))
    shown = []
    for table in tables:
        rows = ",\n  ".join(json.dumps(one) for one in table.pop("figures"))
        shown.append(f' {json.dumps(table)[:-1]}, "figures": [\n  {rows}]}}')
    (directory / "bench.json").write_text(f'{{"run": {json.dumps(run)}, "tables": [\n' + ",\n".join(shown) + "]}\n")
