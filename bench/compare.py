"""Two libraries beside each other: bench.json of base-1, here-1, base-2 and so on in a directory. Run by scripts/bench."""

import json
import pathlib
import statistics
import sys


def figures(path):
    """The median and, where there is one, the ratio of each figure."""
    tables = json.loads(path.read_text())["tables"]
    return {
        (table["title"], figure["name"]): (table["unit"], figure["median"], figure.get("ratio"), figure.get("of"))
        for table in tables
        for figure in table["figures"]
    }


def main(directory):
    """Prints medians over the rounds. The libraries ran one after the other, so ratios say more than figures do: each
    is of the same run."""
    sides = {
        side: [figures(path / "bench.json") for path in sorted(directory.glob(f"{side}-*"))]
        for side in ("base", "here")
    }
    print("| | | base | here | base, ratio | here, ratio | of |\n|---|---|---|---|---|---|---|")
    for key, (unit, _, _, of) in sides["here"][0].items():
        if not all(key in run for runs in sides.values() for run in runs):
            continue
        shown = [f"{statistics.median(run[key][1] for run in sides[side]):.3g}" for side in ("base", "here")]
        ratios = []
        for side in ("base", "here"):
            known = [run[key][2] for run in sides[side] if run[key][2] is not None]
            ratios.append(f"{statistics.median(known):.2f}" if known else "")
        print(f"| {key[1]} | {unit} | {' | '.join(shown)} | {' | '.join(ratios)} | {of or ''} |")


main(pathlib.Path(sys.argv[1]))
