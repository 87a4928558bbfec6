"""report.py - lines of the table, and how they are printed."""
from measure import Failed, median


class Line:
    """One line: a comparison (ratio and goal) or a figure."""

    def __init__(self, row, what, mandor, other="", ratio="", goal="", verdict="", delivery="", **data):
        self.cells = [row, what, mandor, other, ratio, goal, verdict, delivery]
        self.data = {"row": row, "what": what, "mandor": mandor, "other": other, "ratio": ratio, "goal": goal,
                     "verdict": verdict, "delivery": delivery, **data}


HEAD = ["row", "mandor against", "mandor", "other", "ratio (lowest–highest)", "goal", "", "delivery"]


def delivery(*groups):
    """Every sample of every group delivered all that it should have."""
    bad = sum(not sample.ok for group in groups for sample in group)
    return "all" if not bad else f"WRONG in {bad}"


def shown(samples, value, form, unit, cpu_unit):
    """One side's cell: the median, and CPU time a unit of work where asked for."""
    if isinstance(samples, Failed):
        return "–"
    text = f"{form.format(median([value(s) for s in samples]))} {unit}"
    if cpu_unit:
        name, size = cpu_unit
        text += f", {median([s.cpu / s.work * size for s in samples]):.2f} {name}"
    return text


def compare(row, what, ours, theirs, unit, goal=None, value=lambda sample: sample.rate, form="{:,.0f}", less=False, cpu_unit=None,
            enough=None):
    """One line: medians of both sides, and the median of the ratios of runs that stood beside each other.

    The ratio is always "mandor is that many times as good"; less: a smaller value is the better one; enough: a value that meets the goal
    whatever the other one's is.
    """
    cells = [shown(samples, value, form, unit, cpu_unit) for samples in (ours, theirs)]
    wanted = "" if goal is None else f"≥ {goal:g} ×" + (f" or {form.format(enough)}" if enough is not None else "")
    broken = [f"{name}: {samples}" for name, samples in (("mandor", ours), (what, theirs)) if isinstance(samples, Failed)]
    if broken:
        return Line(row, what, *cells, goal=wanted, verdict="NOT RUN", delivery="–", errors=broken)

    mine, other = [value(s) for s in ours], [value(s) for s in theirs]
    ratios = sorted(o / m if less else m / o for m, o in zip(mine, other))
    ratio = median(ratios)
    met = goal is not None and (ratio >= goal or (enough is not None and median(mine) >= enough))
    verdict = "" if goal is None else ("met" if met else "MISSED")
    return Line(row, what, *cells, f"{ratio:.2f} × ({ratios[0]:.2f}–{ratios[-1]:.2f})", wanted, verdict,
                delivery(ours, theirs), mandor_values=mine, other_values=other, ratios=ratios)


def figure(row, what, text, goal="", met=None, ok="", **data):
    verdict = "" if met is None else ("met" if met else "MISSED")
    return Line(row, what, text, goal=goal, verdict=verdict, delivery=ok, **data)


def failed(row, what, error):
    return Line(row, what, "–", verdict="NOT RUN", delivery="–", errors=[str(error)])


def errors(lines):
    """Why rows were not run, each reason once."""
    return list(dict.fromkeys(error for line in lines for error in line.data.get("errors", [])))


def table(lines):
    """A Markdown table that can be read as it is."""
    rows = [HEAD] + [line.cells for line in lines]
    width = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    out = []
    for number, row in enumerate(rows):
        out.append("| " + " | ".join(cell.ljust(width[i]) for i, cell in enumerate(row)) + " |")
        if number == 0:
            out.append("|" + "|".join("-" * (w + 2) for w in width) + "|")
    return "\n".join(out)
